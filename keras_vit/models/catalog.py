"""The list of model families."""

from keras_vit.models.bit.model import BIT
from keras_vit.models.coatnet.model import COATNET
from keras_vit.models.efficientnet.model import EFFICIENTNET
from keras_vit.models.vit.model import VIT
from keras_vit.models.vt_resnet.model import VT_RESNET

FAMILIES = {family.name: family for family in (VIT, BIT, COATNET, EFFICIENTNET, VT_RESNET)}
