package hf

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/internal/terminal"
)

// The names of the weight files in a model directory.
const (
	weightsName = "model.safetensors"
	indexName   = "model.safetensors.index.json"
)

// parseIndex decodes the weight map of a model.safetensors.index.json: tensor name to shard file name.
func parseIndex(doc []byte) (map[string]string, error) {
	obj, err := decodeObject(doc)
	if err != nil {
		return nil, err
	}
	wm, ok := obj.values["weight_map"].v.(*object)
	if !ok {
		return nil, fmt.Errorf("it has no \"weight_map\" object")
	}
	if len(wm.keys) == 0 {
		return nil, fmt.Errorf("its \"weight_map\" is empty")
	}
	out := make(map[string]string, len(wm.keys))
	for _, name := range wm.keys {
		file, ok := wm.values[name].v.(string)
		// A shard is in the directory of its index. A path would let a downloaded file name any file of the machine.
		if !ok || file == "" || file == "." || file == ".." || strings.ContainsAny(file, "/\\\x00") || filepath.Base(file) != file {
			return nil, fmt.Errorf("tensor %s is in %s, which is not a file name", terminal.Quote(name), show(wm.values[name].v))
		}
		out[name] = file
	}
	return out, nil
}
