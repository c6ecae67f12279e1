package runfile

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Mapping reads a YAML or JSON file of another program, with the bounds that a run file has: one mapping, whose values
// are nil, bool, uint64, int64, float64, string, []any and map[string]any.
func Mapping(doc []byte) (values map[string]any, err error) {
	if doc, err = plainText(doc); err != nil {
		return nil, err
	}
	if bytes.HasPrefix(bytes.TrimSpace(doc), []byte("{")) && json.Unmarshal(doc, &values) == nil {
		return values, nil // YAML has it too, except the tabs that indent some
	}
	body, err := parseYAML(doc)
	if err != nil {
		return nil, err
	}
	if pairs(body) == nil {
		return nil, lineErrors{{text: "this is not a mapping of keys and values; name another file"}}
	}
	count := &nodeCount{anchors: newRunFileWalk(body).anchors}
	if count.add(body); count.nodes > maxNodes {
		return nil, lineErrors{{text: fmt.Sprintf("with its aliases (*) followed, it has more than %d values; write them out",
			maxNodes)}}
	}
	defer recovered(&err)
	return values, placed(yaml.UnmarshalWithOptions(doc, &values, yaml.AllowDuplicateMapKey()))
}

// nodeCount counts values. Those that an alias stands for count each time.
type nodeCount struct {
	anchors map[string]ast.Node
	nodes   int
}

func (c *nodeCount) add(n ast.Node) {
	ast.Walk(c, n)
}

// Visit implements ast.Visitor.
func (c *nodeCount) Visit(n ast.Node) ast.Visitor {
	if c.nodes++; c.nodes > maxNodes {
		return nil
	}
	if alias, ok := n.(*ast.AliasNode); ok {
		if to := c.anchors[alias.Value.String()]; to != nil {
			ast.Walk(c, to)
		}
	}
	return c
}
