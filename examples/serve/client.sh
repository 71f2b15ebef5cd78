#!/bin/sh
# Sends one image file to a server with curl, and prints the JSON response.
#
#     sh examples/serve/client.sh cat.jpg [http://127.0.0.1:8501/v1/models/vit]
set -eu
image=${1:?expected the path of an image file}
[ -r "$image" ] || { echo "There is no file $image to read." >&2; exit 1; }
url=${2:-http://127.0.0.1:8501/v1/models/vit}
{
    printf '{"signature_name": "serving_bytes", "instances": [{"image_bytes": {"b64": "'
    base64 < "$image" | tr -d '\n'
    printf '"}}]}'
} | curl --silent --show-error --fail-with-body --header 'Content-Type: application/json' --data-binary @- "$url:predict"
