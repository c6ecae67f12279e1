package model

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/tensor"
)

// Tensor is a tensor of a file and the pieces that make it up.
type Tensor struct {
	Name   string
	Shape  tensor.Shape
	Pieces []Piece
}

// Piece is some rows of a field of a part, [Rows, Cols] from row Row on, and their place in a tensor: element (r, c) of
// the piece is element At + r*RowStep + c*ColStep. A vector has one column. A Width above 0 is how many columns the
// field has, of which those of the piece begin with Col.
type Piece struct {
	Part, Field      int
	Row, Rows, Cols  int
	Col, Width       int
	At               int64
	RowStep, ColStep int
	Numbers          Numbers // that the tensor holds of the field
}

// Source is a tensor of a file that a field of a part, or some rows of it, come from.
type Source struct {
	Name  string
	Shape tensor.Shape
	Piece
}

// F32Reader reads ranges of tensors as fp32 by the names of its files; hf.Weights is one.
type F32Reader interface {
	ReadF32(name string, dst []float32, first int64) error
}

// TensorReader is an F32Reader that knows which tensors it has; hf.Weights is one.
type TensorReader interface {
	F32Reader
	Expect(name string, shape tensor.Shape) error // fails unless there is such a tensor
}

// transposedReader is an F32Reader of files that have some tensors with the last two dimensions exchanged, and that
// reads such a tensor in that order, too; hf.Weights is one.
type transposedReader interface {
	IsTransposed(name string) bool
	ReadTransposedF32(name string, dst []float32, first int64) error
}

// transposedIn is a reader whose files have the tensor transposed; nil: they have not.
func transposedIn(from F32Reader, name string) transposedReader {
	if t, ok := from.(transposedReader); ok && t.IsTransposed(name) {
		return t
	}
	return nil
}

// Fields reads elements of a field of a part, from element first of it on.
type Fields func(part, field int, dst []float32, first int64) error

// Tensors are all tensors of the model's checkpoints in the order in which transformers numbers its parameters, which
// is the order of exported files. A tied head is not among them.
func (m *Model) Tensors() []Tensor { return m.checkpoint.Tensors }

// Checkpoint lists the tensors that checkpoints of transformers hold of the model.
func (m *Model) Checkpoint() *Form { return m.checkpoint }

// GGUF lists the tensors that GGUF files hold of the model. A tensor without a name there is an error.
func (m *Model) GGUF() (*Form, error) {
	return m.gguf(func(n Name) held { return held{n.GGUF, n.CutGGUF, n.NumbersGGUF} })
}

// UnstackedGGUF lists those of files from before llama.cpp stacked experts (April 2024): each expert has tensors of its
// own.
func (m *Model) UnstackedGGUF() (*Form, error) {
	return m.gguf(func(n Name) held {
		return held{strings.Replace(n.GGUF, "_exps.", ".{expert}.", 1), n.CutGGUF &^ Stacked, n.NumbersGGUF}
	})
}

func (m *Model) gguf(of func(Name) held) (*Form, error) {
	if m.Scores() {
		return nil, errors.New("a GGUF file cannot hold a reward model here: use the Hugging Face directory")
	}
	f, err := m.form(m.constants, of)
	if err != nil {
		return nil, fmt.Errorf("a GGUF file cannot hold the model: %w; use the Hugging Face directory", err)
	}
	return f, nil
}

// Transposed is the tensor with its last two dimensions exchanged.
func (t *Tensor) Transposed() *Tensor {
	out := &Tensor{Name: t.Name, Shape: slices.Clone(t.Shape), Pieces: make([]Piece, len(t.Pieces))}
	n := len(t.Shape)
	out.Shape[n-2], out.Shape[n-1] = t.Shape[n-1], t.Shape[n-2]
	for i, p := range t.Pieces {
		out.Pieces[i] = p.transposed(t.Shape)
	}
	return out
}

// transposed is the piece in a tensor of that shape with its last two dimensions exchanged.
func (p Piece) transposed(shape tensor.Shape) Piece {
	rows, cols := int64(shape[len(shape)-2]), int64(shape[len(shape)-1])
	to := func(i int64) int64 { return i/(rows*cols)*(rows*cols) + i%cols*rows + i/cols%rows }
	at := p.At
	p.At = to(at)
	p.RowStep, p.ColStep = int(to(at+int64(p.RowStep))-p.At), int(to(at+int64(p.ColStep))-p.At)
	return p
}

// InOrder reports whether the pieces are whole fields, one after the other.
func (t *Tensor) InOrder() bool {
	at := int64(0)
	for _, p := range t.Pieces {
		if p.At != at || !p.inTensor().isWhole(p.Rows, p.Cols) {
			return false
		}
		at += int64(p.Rows) * int64(p.Cols)
	}
	return true
}

// Read returns elements of the tensor, from element first on.
func (t *Tensor) Read(dst []float32, first int64, from Fields) error {
	for _, p := range t.Pieces {
		if err := transfer(dst, first, p.Rows, p.Cols, p.inTensor(), p.inField(), func(dst []float32, first int64) error {
			err := from(p.Part, p.Field, dst, first)
			p.Numbers.toFile(dst)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// Fields reads fields from the tensors of files.
func (f *Form) Fields(from F32Reader) Fields {
	return func(part, field int, dst []float32, first int64) error {
		for _, src := range f.sources[part] {
			if src.Field == field {
				if err := src.read(from, dst, first); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// NameOf is the name in the files of the tensor that a piece of another form belongs to.
func (f *Form) NameOf(p Piece) string {
	for _, src := range f.sources[p.Part] {
		if src.Field == p.Field {
			return src.Name
		}
	}
	return ""
}

// read returns those elements of the field that the source has.
func (s *Source) read(from F32Reader, dst []float32, first int64) error {
	if t := transposedIn(from, s.Name); t != nil {
		p := s.Piece.transposed(s.Shape)
		return transfer(dst, first, s.Rows, s.Cols, s.inField(), p.inTensor(), func(dst []float32, first int64) error {
			return t.ReadTransposedF32(s.Name, dst, first)
		})
	}
	return transfer(dst, first, s.Rows, s.Cols, s.inField(), s.inTensor(), func(dst []float32, first int64) error {
		err := from.ReadF32(s.Name, dst, first)
		s.Numbers.fromFile(dst)
		return err
	})
}

// steps say where elements (r, c) of a piece are.
type steps struct{ at, row, col int64 }

func (p *Piece) inTensor() steps { return steps{p.At, int64(p.RowStep), int64(p.ColStep)} }
func (p *Piece) inField() steps {
	width := int64(cmp.Or(p.Width, p.Cols))
	return steps{int64(p.Row)*width + int64(p.Col), width, 1}
}

// isWhole reports whether the elements follow each other.
func (s steps) isWhole(rows, cols int) bool {
	return (s.row == int64(cols) || rows == 1) && (s.col == 1 || cols == 1)
}

// transfer fills those elements of dst that a piece has. dst has elements from first on of what is written, where the
// piece has the steps to; read returns elements of what is read, where it has the steps from.
func transfer(dst []float32, first int64, rows, cols int, to, from steps, read func(dst []float32, first int64) error,
) error {
	// Runs go along the dimension that is read with the smaller steps.
	outer, inner := int64(rows), int64(cols)
	if to.isWhole(rows, cols) && from.isWhole(rows, cols) {
		outer, inner, to, from = 1, outer*inner, steps{to.at, 0, 1}, steps{from.at, 0, 1}
	} else if cols == 1 || from.row < from.col {
		outer, inner = inner, outer
		to.row, to.col, from.row, from.col = to.col, to.row, from.col, from.row
	}
	var run []float32
	for o := range outer {
		at := to.at + o*to.row - first
		begin, end := max(0, (-at+to.col-1)/to.col), min(inner, (int64(len(dst))-at+to.col-1)/to.col)
		if begin >= end {
			continue
		}
		source := from.at + o*from.row + begin*from.col
		if to.col == 1 && from.col == 1 {
			if err := read(dst[at+begin:at+end], source); err != nil {
				return err
			}
			continue
		}
		n := (end-begin-1)*from.col + 1
		if int64(len(run)) < n {
			run = make([]float32, n)
		}
		if err := read(run[:n], source); err != nil {
			return err
		}
		for i := begin; i < end; i++ {
			dst[at+i*to.col] = run[(i-begin)*from.col]
		}
	}
	return nil
}

// ReadTensor returns a tensor of the model by its name, row by row. read returns the values of a part, which need to be
// valid until its next call.
func (m *Model) ReadTensor(name string, read func(part int) (Values, error)) ([]float32, error) {
	t, err := m.Tensor(name)
	if err != nil {
		return nil, err
	}
	values := make([]float32, t.Shape.Elems())
	return values, t.Read(values, 0, m.FieldsOf(read))
}

// Tensor returns the tensor of the model's checkpoints with a name.
func (m *Model) Tensor(name string) (*Tensor, error) {
	all := m.Tensors()
	i := slices.IndexFunc(all, func(t Tensor) bool { return t.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("the model has no tensor %.200q; Model.Tensors lists the names", name)
	}
	return &all[i], nil
}

// FieldsOf reads fields from the values of parts, one part's at a time. read returns the values of a part, which need to
// be valid until its next call.
func (m *Model) FieldsOf(read func(part int) (Values, error)) Fields {
	held := -1
	var v Values
	return func(part, field int, dst []float32, first int64) (err error) {
		if held != part {
			held = -1
			if v, err = read(part); err != nil {
				return err
			}
			held = part
		}
		v.Elems(&m.Parts[part].Layout.Fields[field], first, dst)
		return nil
	}
}
