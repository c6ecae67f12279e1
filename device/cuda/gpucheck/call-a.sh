#!/usr/bin/env bash
# The first call on a lent card, 300 s: is it right, and how fast is what nobody has timed? calls.go has its rows.
CALL=a exec bash "$(dirname "$0")/run.sh" "$@"
