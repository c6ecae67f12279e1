package model

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// Model is a decoder-only transformer.
type Model struct {
	Type                        string // the model_type of config.json: "qwen3"
	Hidden, Vocab, MaxPositions int
	Tied                        bool    // the head uses the token embedding
	InitStd                     float64 // standard deviation of random weights

	Blocks []*nn.Block
	Like   []int   // by block: the first block that is equal to it, and so asks the device for the same
	Head   nn.Head // its ChunkTokens is DefaultChunkTokens, which a run may change

	Chains     []Chain // of blocks, the text's last
	Parts      []Part
	Lookups    []Lookup // the tables of which rows are looked up; the token embedding first
	Sides      []Side   // what crosses blocks besides the residual stream, by number
	EmbedTiles []int    // indices of the parts that hold the token embedding, by row: those of the first of Lookups
	BlockParts []int    // of each block's part, or of its trunk
	// GroupParts are, by block, the parts of its feed-forward that are apart from the trunk (nn.InParts); none for most.
	GroupParts [][]int
	NormPart   int
	HeadTiles  []int // of the parts that hold the head, by row; EmbedTiles if tied

	// Constants are those of each block (nn.Block.Constants), as ReadConstants has found them in a checkpoint; nil for
	// a block without any. If all is nil, they are zeros.
	Constants [][]float32

	// Architecture is llama.cpp's name of the family; "": GGUF files are not written of it.
	Architecture string

	layers [][]int // by layer: see LayerParts
	places []place // by layer
	// Scoring is that of a reward model.
	Scoring Scoring

	names      Names
	checkpoint *Form
	replaced   string // of a reward model: the name of the head that its decoder had before
	drawsScore bool
	base       string   // see Family
	carried    []string // patterns of the names of tensors that are carried, see Family
	nextTokens []string // those of them that are for a layer after the last one
	constants  string   // what GGUF files call the constants of a block
	mxfp4      []string // of those that an export can have in MXFP4
}

// EmbedScale is the number that rows of the embedding are multiplied by, where activations have a type.
func (m *Model) EmbedScale(t tensor.DType) float32 { return m.Lookups[0].Scale(t) }

// DefaultChunkTokens is the number of positions that the head treats at once by default. Larger chunks make fewer,
// larger products; a chunk's logits take 4*ChunkTokens*TileRows bytes, and 4*ChunkTokens*Vocab where the head visits
// at once.
const DefaultChunkTokens = 512

// PartKind says what a part is for.
type PartKind uint8

// The kinds of parts.
const (
	Embed      PartKind = iota // a tile of the token embedding, which is also the head's if the two are tied
	Block                      // a decoder block
	Norm                       // the final norm
	HeadTile                   // a tile of a head of its own
	LayerEmbed                 // a tile of a second embedding, of which each layer has columns of its own
	ChainEmbed                 // a tile of the table of a chain before the text
)

// String is the word that part names begin with.
func (k PartKind) String() string {
	return [...]string{"embed", "block", "norm", "head", "layer-embed", "chain-embed"}[k]
}

// Part is a unit of weights: fetched, updated and stored as one.
type Part struct {
	Index       int // in Model.Parts
	Layer       int
	Name        string // "embed.0", "block.11", "norm", "head.2"
	Kind        PartKind
	Layout      *tensor.Layout
	Group       int      // from 1: the number of a group of a block; 0: the part is not a group
	FirstExpert int      // of a group of experts: the number of its first one in the block
	FirstRow    int      // of a tile, in the vocabulary
	Tensors     []Source // of checkpoints, in the order of Layout's fields
}

// Trained reports whether the part has anything to update.
func (p *Part) Trained() bool { return p.Layout.StateElems > 0 }

// Read builds the model that a model directory's config.json describes.
func Read(dir string) (*Model, error) {
	c, err := hf.ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	return New(c)
}

// New builds the model that a config.json describes, of one of the families here or of those that are added. The error
// names the key that is not supported.
func New(c *hf.Config, added ...Family) (*Model, error) {
	s, err := readSpec(c, slices.Concat(families, added))
	if err != nil {
		return nil, err
	}
	m, err := s.build()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Path(), err)
	}
	return m, nil
}

// build makes the blocks and cuts the parts.
func (s *Spec) build() (*Model, error) {
	m := &Model{Type: s.family.ModelType, Hidden: s.Hidden, Vocab: s.Vocab, MaxPositions: s.Positions, Tied: s.Tied,
		InitStd: s.InitStd, Architecture: s.family.Architecture, names: s.family.Names,
		base: s.family.Base, constants: s.family.ConstantsGGUF, mxfp4: s.family.MXFP4, Scoring: s.Scoring,
		replaced: s.replaced}
	for _, pattern := range slices.Concat(s.family.Carried, s.carried) {
		if !strings.Contains(pattern, "{next}") {
			m.carried = append(m.carried, pattern)
			continue
		}
		for next := range max(s.nextTokens, 1) {
			of := strings.ReplaceAll(pattern, "{next}", strconv.Itoa(s.Layers+next))
			m.carried, m.nextTokens = append(m.carried, of), append(m.nextTokens, of)
		}
	}
	if constants := s.family.Constants; constants != "" {
		m.carried = append(m.carried, strings.ReplaceAll(constants, "{layer}", "*"))
	}
	if err := s.checkChains(); err != nil {
		return nil, err
	}
	known := map[string]*tensor.Layout{}
	layouts, largest, err := s.layouts(known)
	if err != nil {
		return nil, err
	}
	rows := tileRows(largest, m.Hidden, m.Vocab)
	m.Head = nn.Head{Hidden: m.Hidden, Vocab: m.Vocab, TileRows: rows, ChunkTokens: DefaultChunkTokens, Norm: s.Norm,
		Scale: s.LogitScale, SoftCap: s.SoftCap, Scores: s.isScored}
	if m.Scores() {
		m.Head.Vocab, m.Head.TileRows = 1, 1
	}

	if m.EmbedTiles, err = m.addTiles(Embed, 0, m.Vocab, rows, m.Hidden); err != nil {
		return nil, err
	}
	m.Lookups = []Lookup{{Tiles: m.EmbedTiles, Cols: m.Hidden, Side: -1, scale: s.EmbedScale}}
	if cols := s.LayerRows.Cols; cols > 0 {
		l := Lookup{Cols: cols * s.Layers, Side: s.LayerRows.Side, scale: s.LayerRows.Scale}
		if l.Tiles, err = m.addTiles(LayerEmbed, 0, m.Vocab, tileRows(largest, l.Cols, m.Vocab), l.Cols); err != nil {
			return nil, err
		}
		m.Lookups = append(m.Lookups, l)
	}
	if err := m.addChains(s, rows); err != nil {
		return nil, err
	}
	for l, block := range s.allBlocks() {
		if err := block.Check(); err != nil {
			return nil, fmt.Errorf("%slayer %d: %w", m.prefix(1+l), m.inChain(1+l), err)
		}
		m.Blocks = append(m.Blocks, block)
		m.Like = append(m.Like, slices.IndexFunc(m.Blocks, func(b *nn.Block) bool { return reflect.DeepEqual(b, block) }))
		p := Part{Layer: 1 + l, Name: fmt.Sprintf("%s%v.%d", m.prefix(1+l), Block, m.inChain(1+l)), Kind: Block,
			Layout: layouts[l]}
		m.BlockParts = append(m.BlockParts, m.add(p))
		if err := m.addGroups(l, known); err != nil {
			return nil, err
		}
	}
	if err := m.addSides(); err != nil {
		return nil, err
	}
	norm, err := tensor.NewLayout(m.Head.Fields()...)
	if err != nil {
		return nil, err
	}
	m.NormPart = m.add(Part{Layer: 1 + len(m.Blocks), Name: Norm.String(), Kind: Norm, Layout: norm})
	m.HeadTiles = m.EmbedTiles
	if !m.Tied {
		if m.HeadTiles, err = m.addTiles(HeadTile, 1+len(m.Blocks), m.Head.Vocab, m.Head.TileRows, m.Hidden); err != nil {
			return nil, err
		}
	}
	inHF := func(n Name) held { return held{n.HF, n.CutHF, Plain} }
	m.layers = m.partsByLayer()
	if m.checkpoint, err = m.form(s.family.Constants, inHF); err != nil {
		return nil, err
	}
	for i := range m.Parts {
		m.Parts[i].Tensors = m.checkpoint.sources[i]
	}
	return m, nil
}

// addGroups makes the parts of a block's groups, with layouts that are known where they are equal.
func (m *Model) addGroups(block int, known map[string]*tensor.Layout) error {
	var parts []int
	for g := range m.Blocks[block].Parts() {
		layout, err := layoutOf(m.Blocks[block].PartFields(g), known)
		if err != nil {
			return err
		}
		p := Part{Layer: 1 + block, Name: fmt.Sprintf("%s%v.%d.group.%d", m.prefix(1+block), Block, m.inChain(1+block), g),
			Kind: Block, Layout: layout, Group: 1 + g}
		if x, ok := m.Blocks[block].FeedForward.(nn.Mixture); ok {
			p.FirstExpert = x.Mixture().FirstExpert(g)
		}
		parts = append(parts, m.add(p))
	}
	m.GroupParts = append(m.GroupParts, parts)
	return nil
}

// DecoderParts returns the parts of all blocks, each followed by its groups.
func (m *Model) DecoderParts() (parts []int) {
	for b, part := range m.BlockParts {
		parts = append(append(parts, part), m.GroupParts[b]...)
	}
	return parts
}

// layoutOf is the layout of the fields: the known one of equal fields, or a new one.
func layoutOf(fields []tensor.Field, known map[string]*tensor.Layout) (*tensor.Layout, error) {
	key := fmt.Sprint(fields)
	if known[key] == nil {
		l, err := tensor.NewLayout(fields...)
		if err != nil {
			return nil, err
		}
		known[key] = l
	}
	return known[key], nil
}

// layouts returns the layouts of the blocks, which share them where they have the same tensors, and the largest one.
func (s *Spec) layouts(known map[string]*tensor.Layout) (all []*tensor.Layout, largest *tensor.Layout, err error) {
	for _, b := range s.allBlocks() {
		l, err := layoutOf(b.Fields(), known)
		if err != nil {
			return nil, nil, err
		}
		if all = append(all, l); largest == nil || l.WeightElems > largest.WeightElems {
			largest = l
		}
	}
	return all, largest, nil
}

// maxTiles keeps models with a huge vocabulary and tiny blocks from being nothing but tiles: a step has an operation
// for each of them and each micro-batch.
const maxTiles = 1024

// tileRows makes a tile of the vocabulary about as large as the largest block, or larger where there would be more
// than maxTiles: the number of rows, a multiple of 64 unless one tile is enough.
func tileRows(block *tensor.Layout, hidden, vocab int) int {
	params, _ := block.Params()
	rows := (params + int64(hidden) - 1) / int64(hidden)
	rows = max(rows, (int64(vocab)+maxTiles-1)/maxTiles)
	rows = (rows + 63) / 64 * 64
	return int(min(rows, int64(vocab)))
}

// addTiles cuts a matrix of rows, one for each token as a rule, into parts of some of them, and returns their indices.
func (m *Model) addTiles(k PartKind, layer, rows, tileRows, cols int) ([]int, error) {
	var tiles []int
	for first := 0; first < rows; first += tileRows {
		layout, err := tensor.NewLayout(nn.TileFields(min(tileRows, rows-first), cols)...)
		if err != nil {
			return nil, err
		}
		tiles = append(tiles, m.add(Part{Layer: layer, Name: fmt.Sprintf("%v.%d", k, len(tiles)), Kind: k,
			Layout: layout, FirstRow: first}))
	}
	return tiles, nil
}

func (m *Model) add(p Part) int {
	p.Index = len(m.Parts)
	m.Parts = append(m.Parts, p)
	return p.Index
}

// Layers is the number of layers: the embedding, the blocks, and the final norm with the head.
func (m *Model) Layers() int { return len(m.Blocks) + 2 }

// Rotary are the frequencies that place the positions of documents in rotary tables (nn.RopeFrequencies.Place): those
// of any block with longrope, since the blocks of a model agree in which documents are long (Spec.checkRopes).
func (m *Model) Rotary() nn.RopeFrequencies {
	for _, b := range m.Blocks {
		if f := b.Rotary(); f.Kind == nn.RopeLong {
			return f
		}
	}
	return nn.RopeFrequencies{}
}

// Params is the number of parameters, a tied matrix counted once.
func (m *Model) Params() (all, trainable int64) {
	for i := range m.Parts {
		a, t := m.Parts[i].Layout.Params()
		all, trainable = all+a, trainable+t
	}
	return all, trainable
}

// Active is the number of parameters that a token is computed with: all but those of experts that it does not choose.
func (m *Model) Active() (active int64) {
	active, _ = m.Params()
	for b, parts := range m.GroupParts {
		f, ok := m.Blocks[b].FeedForward.(nn.Mixture)
		if !ok {
			continue
		}
		x := f.Mixture()
		var all int64
		for _, part := range parts {
			n, _ := m.Parts[part].Layout.Params()
			all += n
		}
		active -= all / int64(x.Number) * int64(x.Number-x.Route.TopK)
	}
	return active
}

// LearnsPositions reports whether each of the MaxPositions has weights, without which a document cannot be longer.
func (m *Model) LearnsPositions() bool {
	return slices.ContainsFunc(m.Blocks, func(b *nn.Block) bool { return b.Positions > 0 })
}

// CanGoBack reports whether passes may take up a sequence again at any of its positions. Where a block remembers it in
// a state, a sequence can only continue, or begin again.
func (m *Model) CanGoBack() bool {
	return !slices.ContainsFunc(m.Blocks, func(b *nn.Block) bool { return !b.CanGoBack() })
}

// TrainFLOPs is the arithmetic that a training step on documents of these lengths takes by the usual account: forward,
// and twice as much for backward; 2MNK for each product, attention by the pairs that it really scores; recomputation
// does not count. It is close to 6 times parameters times positions, plus attention.
func (m *Model) TrainFLOPs(docs []int) int64 {
	blocks, head := m.ForwardAccount(docs)
	return 3 * (blocks.FLOPs() + head.FLOPs())
}

// ForwardAccount counts what the blocks and the head ask of a device to compute the losses of documents of these
// lengths.
func (m *Model) ForwardAccount(docs []int) (blocks, head nn.Account) {
	known := map[int]nn.Account{}
	for i, like := range m.Like {
		if _, ok := known[like]; !ok {
			known[like] = m.Account(1+i, docs)
		}
		blocks = blocks.Plus(known[like])
	}
	return blocks, m.Account(1+len(m.Blocks), docs)
}

// Account counts the same of one layer, a block from 1 or the head after them.
func (m *Model) Account(layer int, docs []int) (sum nn.Account) {
	l, shape := m.Layer(layer), nn.Shape{Docs: docs, DType: tensor.BF16}
	for _, stage := range l.Stages(nn.Forward, false) {
		for _, v := range stage {
			sum = sum.Plus(l.Measure(v, shape, m.Layouts(layer, v.Parts)...))
		}
	}
	return sum
}

// Layer is a block, from 1, or the head after them.
func (m *Model) Layer(layer int) nn.Layer {
	if layer <= len(m.Blocks) {
		return m.Blocks[layer-1]
	}
	return &m.Head
}

// LayerParts are the parts of a layer, by their number in it; callers leave them as they are. Layer 0 is the embedding.
func (m *Model) LayerParts(layer int) []int { return m.layers[layer] }

// partsByLayer lists the parts of each layer.
func (m *Model) partsByLayer() [][]int {
	all := [][]int{m.EmbedTiles}
	for b, part := range m.BlockParts {
		all = append(all, append([]int{part}, m.GroupParts[b]...))
	}
	return append(all, append([]int{m.NormPart}, m.HeadTiles...))
}

// Layouts returns the layouts of some of a layer's parts.
func (m *Model) Layouts(layer int, parts []int) (all []*tensor.Layout) {
	of := m.LayerParts(layer)
	for _, part := range parts {
		all = append(all, m.Parts[of[part]].Layout)
	}
	return all
}
