package runfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// FlatValue is one value of a run file.
type FlatValue struct {
	Key  string // with the keys around it before it: memory.host, datasets[0].path
	Text string // as the file has it, without quotes; of a list of scalars the whole list, as [0.9, 0.999]
}

// Flat lists the values of a run file in the order of the document, within the bounds that a run file has. It holds
// the keys against nothing: the file may be of another version. An empty list is [], an empty mapping {}, and a key
// without a value has an empty text.
func Flat(doc []byte) ([]FlatValue, error) {
	doc, err := plainText(doc)
	if err != nil {
		return nil, err
	}
	body, err := parseYAML(doc)
	if err != nil || body == nil {
		return nil, err
	}
	if pairs(body) == nil {
		return nil, lineErrors{{text: "this is not a mapping of keys and values; name another file"}}
	}
	f := flattening{anchors: newRunFileWalk(body).anchors}
	f.add(body, "")
	if f.nodes > maxNodes {
		return nil, lineErrors{{text: fmt.Sprintf("with its aliases (*) followed, it has more than %d values; write them out",
			maxNodes)}}
	}
	return f.found, nil
}

type flattening struct {
	anchors map[string]ast.Node
	nodes   int // that were visited; those of an alias count each time
	found   []FlatValue
}

func (f *flattening) add(n ast.Node, key string) {
	if f.nodes++; f.nodes > maxNodes {
		return
	}
	put := func(text string) { f.found = append(f.found, FlatValue{key, text}) }
	switch v := n.(type) {
	case nil, *ast.NullNode:
		put("")
	case *ast.AliasNode:
		if to := f.anchors[v.Value.String()]; to != nil {
			f.add(to, key)
		}
	case *ast.AnchorNode:
		f.add(v.Value, key)
	case *ast.TagNode:
		f.add(v.Value, key)
	case *ast.SequenceNode:
		f.addList(v, key)
	default:
		if values := pairs(n); values != nil {
			for _, p := range values {
				if p.Key.IsMergeKey() {
					f.add(p.Value, key)
				} else {
					f.add(p.Value, strings.TrimPrefix(key+"."+keyText(p.Key), "."))
				}
			}
			if len(values) == 0 {
				put("{}")
			}
			return
		}
		text, isScalar := scalarText(n)
		if !isScalar {
			text = n.String()
		}
		put(text)
	}
}

// addList adds a list of scalars as one value, and each entry of another list by itself.
func (f *flattening) addList(list *ast.SequenceNode, key string) {
	texts := make([]string, 0, min(len(list.Values), maxNodes))
	for _, e := range list.Values {
		text, isScalar := scalarText(e)
		switch e.(type) {
		case *ast.AliasNode, *ast.AnchorNode, *ast.TagNode: // which may stand for more
			isScalar = false
		}
		if !isScalar {
			texts = nil
			break
		}
		texts = append(texts, text)
	}
	if texts != nil {
		f.nodes += len(texts)
		f.found = append(f.found, FlatValue{key, "[" + strings.Join(texts, ", ") + "]"})
		return
	}
	for i, e := range list.Values {
		f.add(e, fmt.Sprintf("%s[%d]", key, i))
	}
}

// FlatDifference is a key that does not have the same value in all of several run files.
type FlatDifference struct {
	Key   string
	Texts []*string // by run file; nil: the file does not have the key
}

// FlatDifferences lists the keys in which the values of run files differ, in the order of the keys of a run file, and
// of those in one mapping as the files have them.
func FlatDifferences(files [][]FlatValue) (all []FlatDifference) {
	place := map[string]int{}
	for i, values := range files {
		for _, v := range values {
			at, known := place[v.Key]
			if !known {
				at = len(all)
				place[v.Key] = at
				all = append(all, FlatDifference{v.Key, make([]*string, len(files))})
			}
			all[at].Texts[i] = &v.Text
		}
	}
	all = slices.DeleteFunc(all, func(d FlatDifference) bool {
		return !slices.ContainsFunc(d.Texts, func(s *string) bool {
			first := d.Texts[0]
			return (s == nil) != (first == nil) || s != nil && *s != *first
		})
	})
	slices.SortStableFunc(all, func(a, b FlatDifference) int {
		return cmp.Compare(orderOfFlat(a.Key), orderOfFlat(b.Key))
	})
	return all
}

// orderOfFlat is the position of the outermost key of a flat one; one that is not known comes first.
func orderOfFlat(key string) int {
	if end := strings.IndexAny(key, ".["); end >= 0 {
		key = key[:end]
	}
	return Order(key)
}
