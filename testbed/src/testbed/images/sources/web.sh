#!/bin/sh
# Root may listen on port 80; anyone else gets 8080 alone. Arguments go to nginx, such as -t.
if [ "$(id -u)" = 0 ]; then
    config=/etc/nginx/nginx.conf
else
    config=/etc/nginx/unprivileged.conf
fi
exec nginx -e stderr -c "$config" "$@"
