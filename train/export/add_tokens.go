package export

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

// AddTokensOptions say which tokens a model is to get.
type AddTokensOptions struct {
	Model   string   // a Hugging Face directory, or a hub id
	Dir     string   // to write
	Tokens  []string // in the order of their ids
	Plain   bool     // they are not special: decoding never leaves them out
	Replace bool     // see hf.WriteOptions
}

// TokensAdded reports the work of AddTokens.
type TokensAdded struct {
	Added         []hf.AddedToken
	Known         []hf.AddedToken // asked for, and in the tokenizer before
	First         int             // the id of the first token whose row is new
	Rowless       int             // tokens that the tokenizer had and the embeddings had no row for
	OldRows, Rows int             // of the embeddings
}

// AddTokens writes a model again with further tokens: in the files of its tokenizer, as rows of its embeddings and of
// the head, and in config.json. Rows that no token had are used first. The rows of new tokens are the mean of the rows
// that tokens have; all other bytes of the weights are those of the model. Tokens that the tokenizer has are left as
// they are, and those of them that have no row get one. Weights go through memory a piece at a time.
func AddTokens(ctx context.Context, env *session.Env, o AddTokensOptions) (done *TokensAdded, err error) {
	var ask blame.Asking
	defer ask.Judge(ctx, &err)
	src, err := source.OpenModel(ctx, env, o.Model)
	if err != nil {
		return nil, err
	}
	if err := src.CheckSidecars(); err != nil {
		return nil, err
	}
	tok, err := src.ReadTokenizer("auto")
	if err != nil {
		return nil, err
	}
	rows := src.Model.Vocab
	if done, err = newTokens(tok, rows, o); err != nil {
		return nil, err
	}
	g := &growth{src: src, from: min(tok.VocabSize(), rows), to: tok.VocabSize() + len(done.Added)}
	done.First, done.Rowless = g.from, tok.VocabSize()-g.from
	done.OldRows, done.Rows = rows, max(rows, g.to)
	g.rows = done.Rows
	files := map[string][]byte{}
	if len(done.Added) > 0 {
		if files, err = hf.TokenizerWith(src.Dir, done.Added); err != nil {
			return nil, err
		}
		if err := checkAdded(files["tokenizer.json"], done.Added); err != nil {
			return nil, err
		}
	}
	config, err := src.Config.WithVocabSize(done.Rows)
	if err != nil {
		return nil, err
	}
	if err := checkRows(src.Config.Path(), config, done.Rows); err != nil {
		return nil, err
	}
	card, err := hf.ReadCard(src.Dir)
	if err != nil {
		return nil, err
	}
	if g.w, err = src.Model.OpenWeights(src.Dir); err != nil {
		return nil, err
	}
	defer g.w.Close()
	if err := src.Model.Check(ctx, g.w); err != nil {
		return nil, err
	}
	specs, bytes := g.specs()
	if err := env.HasRoom(filepath.Dir(o.Dir), bytes); err != nil {
		return nil, err
	}
	to, err := hf.CreateModel(o.Dir, specs, hf.WriteOptions{Replace: o.Replace, FS: env.Files()})
	if err != nil {
		return nil, err
	}
	defer to.Abort() // does nothing after Commit
	ask.IsOver = true
	bar := env.Bar("writing " + o.Dir)
	defer bar.End()
	var written int64
	for _, t := range specs {
		err := g.write(ctx, t.Name, func(piece []byte) error {
			written += int64(len(piece))
			bar.Set(written, bytes)
			return to.Write(t.Name, piece)
		})
		if err != nil {
			return nil, err
		}
	}
	if err := to.AddFile("config.json", config); err != nil {
		return nil, err
	}
	if err := to.AddSidecars(src.Dir); err != nil {
		return nil, err
	}
	if card != nil {
		files[hf.CardName] = card
	}
	for name, text := range files { // those of the tokenizer take the place of sidecars
		if err := to.AddFile(name, text); err != nil {
			return nil, err
		}
	}
	return done, to.Commit()
}

// newTokens gives ids to the tokens that a tokenizer lacks: those after its last one. Embeddings have that many rows.
func newTokens(tok tokenizer.Tokenizer, rows int, o AddTokensOptions) (*TokensAdded, error) {
	done := &TokensAdded{}
	for i, text := range o.Tokens {
		switch id := tok.TokenID(text); {
		case strings.TrimSpace(text) == "" || !utf8.ValidString(text):
			return nil, fmt.Errorf("%q cannot be a token: write a text such as <|im_start|>", text)
		case slices.Contains(o.Tokens[:i], text):
			return nil, fmt.Errorf("the token %s is named twice: name it once", text)
		case id != tokenizer.None:
			done.Known = append(done.Known, hf.AddedToken{ID: int(id), Content: text})
		default:
			id := tok.VocabSize() + len(done.Added)
			done.Added = append(done.Added, hf.AddedToken{ID: id, Content: text, Special: !o.Plain})
		}
	}
	if len(done.Added) == 0 && tok.VocabSize() <= rows {
		return nil, errors.New("the tokenizer has all of these tokens: there is nothing to add, and nothing is written")
	}
	return done, nil
}

// checkAdded fails unless the tokenizer finds each of the tokens in text.
func checkAdded(file []byte, added []hf.AddedToken) error {
	t, err := tokenizer.Parse(file)
	if err != nil {
		return fmt.Errorf("tokenizer.json with the new tokens: %w", err)
	}
	for _, a := range added {
		if ids := t.Encode(a.Content, false); !slices.Equal(ids, []int32{int32(a.ID)}) {
			return fmt.Errorf("the tokenizer cuts %s into the tokens %v, also when it is added: one of them is found before "+
				"it", a.Content, ids)
		}
	}
	return nil
}

// checkRows fails unless config.json says that the embeddings and the head have that number of rows.
func checkRows(path string, config []byte, rows int) error {
	c, err := hf.ParseConfig(path, config)
	if err != nil {
		return err
	}
	m, err := model.New(c)
	if err == nil && m.Vocab != rows {
		err = fmt.Errorf("%s: \"vocab_size\" is missing: write \"vocab_size\": %d into it, and add the tokens again",
			path, m.Vocab)
	}
	return err
}

// growth describes the new rows of the matrices that have a row for each token.
type growth struct {
	src      *source.Source
	w        *hf.Weights
	from, to int // ids of the new tokens
	rows     int // of the matrices
}

// grows reports whether a tensor has a row for each token: an embedding, the head, and a head that is in the files
// of a model that uses its embedding for that.
func (g *growth) grows(name string) bool {
	m := g.src.Model
	if name == m.HeadName() {
		info, _ := g.w.Info(name)
		return info.Shape.Equal(tensor.Shape{m.Vocab, m.Hidden})
	}
	holds := func(tiles []int) bool { return m.Parts[tiles[0]].Tensors[0].Name == name }
	return !m.Scores() && holds(m.HeadTiles) ||
		slices.ContainsFunc(m.Lookups, func(l model.Lookup) bool { return holds(l.Tiles) })
}

// specs are the tensors to write, and their bytes.
func (g *growth) specs() (specs []hf.TensorSpec, bytes int64) {
	for _, tensorName := range g.w.Names() {
		for _, name := range g.w.Stored(tensorName) {
			info, _ := g.w.Info(name)
			if g.grows(name) {
				bytes += info.Bytes / int64(info.Shape[0]) * int64(g.rows-info.Shape[0])
				info.Shape = tensor.Shape{g.rows, info.Shape[1]}
			}
			bytes += info.Bytes
			specs = append(specs, hf.TensorSpec{Name: name, Shape: info.Shape, Type: info.Type})
		}
	}
	return specs, bytes
}

// write hands out the bytes of a tensor. In one that grows the rows of the new tokens are the mean of the rows before
// them; rows after them, which no token has, stay.
func (g *growth) write(ctx context.Context, name string, to func([]byte) error) error {
	info, _ := g.w.Info(name)
	if !g.grows(name) {
		return g.copy(ctx, name, 0, info.Bytes, to)
	}
	mean, err := g.mean(ctx, name)
	if err != nil {
		return err
	}
	row := info.Bytes / int64(info.Shape[0])
	if err := g.copy(ctx, name, 0, row*int64(g.from), to); err != nil {
		return err
	}
	encoded := encodeRow(mean, info.DType)
	for range g.to - g.from {
		if err := to(encoded); err != nil {
			return err
		}
	}
	return g.copy(ctx, name, row*int64(g.to), info.Bytes, to)
}

// copy hands out the bytes of a tensor from an offset to another.
func (g *growth) copy(ctx context.Context, name string, from, end int64, to func([]byte) error) error {
	buf := make([]byte, max(0, min(source.CarriedPiece, end-from)))
	for off := from; off < end; off += source.CarriedPiece {
		if err := ctx.Err(); err != nil {
			return err
		}
		piece := buf[:min(source.CarriedPiece, end-off)]
		if err := g.w.ReadAt(name, piece, off); err != nil {
			return blame.BadRequest(err) // of the model, which the user has named
		}
		if err := to(piece); err != nil {
			return err
		}
	}
	return nil
}

// mean is the mean of the rows that tokens have.
func (g *growth) mean(ctx context.Context, name string) ([]float32, error) {
	info, _ := g.w.Info(name)
	cols := info.Shape[1]
	sums, rows := make([]float64, cols), max(1, exportElems/cols)
	buf := make([]float32, rows*cols)
	for first := 0; first < g.from; first += rows {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		piece := buf[:min(rows, g.from-first)*cols]
		if err := g.w.ReadF32(name, piece, int64(first)*int64(cols)); err != nil {
			return nil, blame.BadRequest(err)
		}
		for i, x := range piece {
			sums[i%cols] += float64(x)
		}
	}
	mean := make([]float32, cols)
	for i, sum := range sums {
		mean[i] = float32(sum / float64(g.from))
	}
	return mean, nil
}

// encodeRow is a row in the type of its tensor, little-endian, rounded to nearest, ties to even.
func encodeRow(row []float32, dtype tensor.DType) []byte {
	out := make([]byte, 0, int64(len(row))*dtype.Bytes())
	for _, x := range row {
		switch dtype {
		case tensor.F32:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
		case tensor.F16:
			out = binary.LittleEndian.AppendUint16(out, tensor.F16FromF32(x))
		default:
			out = binary.LittleEndian.AppendUint16(out, tensor.BF16FromF32(x))
		}
	}
	return out
}
