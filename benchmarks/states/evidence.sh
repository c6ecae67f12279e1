#!/bin/sh
# evidence.sh KIND DIR [FLAGS]: trains the tiny model evidence/KIND (dense, mixture, hybrid) from random weights on sources of
# Go, then runs the evidence on sources that it has not seen. DIR keeps the model; FLAGS are those of evidence.
set -eu
here=$(cd "$(dirname "$0")" && pwd) kind=$1 dir=$2
shift 2
mkdir -p "$dir" && cd "$dir"
src=$(go env GOROOT)/src
common() {
	cat <<END
tokenizer: bytes
sequence_len: 256
batch_tokens: 2048
memory: {host: 8GiB}
save: {at_end: false, minutes: 0}
END
}
if [ ! -d "$kind/model" ]; then
	{
		common
		echo "model: $here/evidence/$kind"
		echo "init: random"
		echo "datasets: [{path: '$src/net/http/*.go', type: text}]"
		echo "max_steps: 400"
		echo "warmup_steps: 40"
		echo "learning_rate: 3e-3"
		echo "lr_scheduler: linear"
		echo "output_dir: $kind"
	} >"$kind.yaml"
	(cd "$here/../.." && go build -o "$dir/millrace" ./cmd/millrace)
	./millrace train "$kind.yaml"
fi
{
	common
	echo "model: $kind/model"
	echo "datasets: [{path: '$src/encoding/*/*.go', type: text}]"
	echo "eval: {datasets: [{path: '$src/text/template/parse/*.go', type: text}]}"
} >"$kind-on.yaml"
(cd "$here/../.." && go build -o "$dir/evidence-program" ./benchmarks/states/evidence)
./evidence-program -config "$kind-on.yaml" "$@"
