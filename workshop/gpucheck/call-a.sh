#!/usr/bin/env bash
# The first call on a lent card, 310 s: is it right, and how fast is what was never timed? calls.go has its rows.
CALL=a exec bash "$(dirname "$0")/run.sh" "$@"
