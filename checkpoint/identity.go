package checkpoint

import (
	"crypto/sha256"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/store"
)

// Identify makes the record that a checkpoint has of a model: of its config.json, and of the tensors that it carries,
// by a checksum, if there are any.
func Identify(m *model.Model, configJSON []byte, carriedSHA256 string) Model {
	return Model{m.Type, fmt.Sprintf("%x", sha256.Sum256(configJSON)), layoutHash(m.Parts), carriedSHA256, m.Untrained()}
}

// Is reports whether two are the same model, laid out in the same way.
func (m Model) Is(other Model) bool { return reflect.DeepEqual(m, other) }

// With returns the model m with the tensors frozen that were not trained.
func (m Model) With(of *model.Model) (*model.Model, error) {
	if len(m.Frozen) == 0 {
		return of, nil
	}
	frozen := map[string]bool{}
	for _, name := range m.Frozen {
		frozen[name] = true
	}
	return of.Grouped(func(name string) (int, bool) { return 0, !frozen[name] })
}

// layoutHash is a SHA-256 over the names of the parts and the tensors, shapes and offsets of each: two programs with
// the same one mean the same number by the same byte of an extent.
func layoutHash(parts []model.Part) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%q %d %d\n", p.Name, p.Layout.WeightElems, p.Layout.StateElems)
		names := map[int]string{}
		for _, src := range p.Tensors {
			names[src.Field] = nameInPart(src.Name)
		}
		for i, f := range p.Layout.Fields {
			fmt.Fprintf(h, " %q %v %d %d\n", names[i], []int(f.Shape), f.First, f.State)
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// nameInPart returns what follows the last number in a tensor's name, as in "self_attn.q_proj.weight"; of one without a
// number it is the last word.
func nameInPart(name string) string {
	words := strings.Split(name, ".")
	for i := len(words) - 1; i > 0; i-- {
		if _, err := strconv.Atoi(words[i-1]); err == nil {
			return strings.Join(words[i:], ".")
		}
	}
	return words[len(words)-1]
}

// Specs are the extents of a run as a checkpoint holds them. Gradients are not state, nor are sums of them.
func Specs(m *model.Model, extents []store.Spec, forms store.Forms) []Spec {
	var specs []Spec
	for _, s := range extents {
		if s.Kind != store.Grad && s.Kind != store.GradSum {
			specs = append(specs, Spec{IDOf(m, s.ID), forms[s.Kind].Type, s.Bytes, s.Piece})
		}
	}
	return specs
}

// IDOf is the name in a checkpoint of a store's extent.
func IDOf(m *model.Model, id store.ID) ID { return ID{m.Parts[id.Part].Name, id.Kind} }
