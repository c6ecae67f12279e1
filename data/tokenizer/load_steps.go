package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

type patternJSON struct {
	Regex  *string `json:"Regex"`
	String *string `json:"String"`
}

func (p *patternJSON) matcher() (matcher, error) {
	switch {
	case p == nil || (p.Regex == nil) == (p.String == nil):
		return nil, errors.New("it needs one pattern, Regex or String")
	case p.String != nil && *p.String == "":
		return nil, errors.New("the pattern is empty")
	case p.String != nil:
		return literal(*p.String), nil
	}
	if scan, ok := scanners[*p.Regex]; ok {
		return scan, nil
	}
	return compileExpression(*p.Regex)
}

type normalizerJSON struct {
	Type        string            `json:"type"`
	Normalizers []json.RawMessage `json:"normalizers"`
	Pattern     *patternJSON      `json:"pattern"`
	Content     string            `json:"content"`
	Prepend     string            `json:"prepend"`
}

// normalizerSteps holds the steps of a file's normalizer.
type normalizerSteps struct {
	list         []normalizer
	removesStart bool // a text may lose its first character, or get another one in front
	growth       int  // how many times longer a text may become
}

func readNormalizer(raw json.RawMessage) (*normalizerSteps, error) {
	s := &normalizerSteps{growth: 1}
	return s, s.read(raw)
}

func (s *normalizerSteps) add(n normalizer, growth int) error {
	if len(s.list) >= maxSteps {
		return fmt.Errorf("more than %d steps", maxSteps)
	}
	if s.growth *= max(1, growth); s.growth > maxGrowth {
		return fmt.Errorf("it could make a text more than %d times longer", maxGrowth)
	}
	s.list = append(s.list, n)
	return nil
}

func (s *normalizerSteps) read(raw json.RawMessage) error {
	if isNull(raw) {
		return nil
	}
	var n normalizerJSON
	if err := strict(raw, &n); err != nil {
		return err
	}
	forms := map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD}
	if form, ok := forms[n.Type]; ok {
		return s.add(unicodeForm(form), 1)
	}
	switch n.Type {
	case "Sequence":
		for _, raw := range n.Normalizers {
			if err := s.read(raw); err != nil {
				return err
			}
		}
		return nil
	case "Prepend":
		if n.Prepend == "" {
			return nil
		}
		s.removesStart = true
		return s.add(prependText(n.Prepend), 1+len(n.Prepend))
	case "Replace":
		m, err := n.Pattern.matcher()
		if err != nil {
			return fmt.Errorf("Replace: %w", err)
		}
		s.removesStart = s.removesStart || n.Content == ""
		least := 1
		if l, ok := m.(literal); ok {
			least = len(l)
		}
		return s.add(replace{m, n.Content}, (len(n.Content)+least-1)/least)
	case "ByteLevel":
		return s.add(spellText{}, 2)
	}
	return fmt.Errorf("type %s is not supported: only Sequence, NFC, NFD, NFKC, NFKD, Replace, Prepend and ByteLevel are",
		n.Type)
}

type preTokenizerJSON struct {
	Type             string            `json:"type"`
	PreTokenizers    []json.RawMessage `json:"pretokenizers"`
	Pattern          *patternJSON      `json:"pattern"`
	Behavior         *string           `json:"behavior"`
	Invert           bool              `json:"invert"`
	IndividualDigits bool              `json:"individual_digits"`
	AddPrefixSpace   *bool             `json:"add_prefix_space"`
	TrimOffsets      bool              `json:"trim_offsets"`
	UseRegex         *bool             `json:"use_regex"`
	Replacement      string            `json:"replacement"`
	PrependScheme    string            `json:"prepend_scheme"`
	Split            *bool             `json:"split"`
	StrRep           json.RawMessage   `json:"str_rep"`
}

// preTokenizer holds the steps of a file's pre-tokenizer.
type preTokenizer struct {
	steps        []splitter
	byteLevel    bool // it ends by spelling bytes; the model adds that step if it does not work on bytes itself
	afterRemoval bool // the normalizer may remove the start of a text
}

func (p *preTokenizer) read(raw json.RawMessage) error {
	if isNull(raw) {
		return nil
	}
	var j preTokenizerJSON
	if err := strict(raw, &j); err != nil {
		return err
	}
	if j.Type == "Sequence" {
		for _, raw := range j.PreTokenizers {
			if err := p.read(raw); err != nil {
				return err
			}
		}
		return nil
	}
	if p.byteLevel { // another step follows, so that the spelling is text like any other
		p.steps = append(p.steps, spellBytes{})
		p.byteLevel = false
	}
	steps, err := p.stepsOf(j)
	if err != nil {
		return err
	}
	if p.steps = append(p.steps, steps...); len(p.steps) > maxSteps {
		return fmt.Errorf("more than %d steps", maxSteps)
	}
	return nil
}

func (p *preTokenizer) stepsOf(j preTokenizerJSON) ([]splitter, error) {
	how := isolated
	if j.Behavior != nil {
		var ok bool
		if how, ok = behaviors[*j.Behavior]; !ok {
			return nil, fmt.Errorf("behavior %q of %s is not supported", *j.Behavior, j.Type)
		}
	} else if j.Type == "Split" {
		return nil, errors.New("a Split needs a behavior")
	}
	switch j.Type {
	case "Split":
		m, err := j.Pattern.matcher()
		if err != nil {
			return nil, fmt.Errorf("Split: %w", err)
		}
		if scan, ok := m.(scanner); ok && j.Invert && how == removed && coversAll[*j.Pattern.Regex] {
			// The matches stay, and there is nothing else.
			return []splitter{split{matcher: scan, seams: seamsOf[*j.Pattern.Regex]}}, nil
		}
		s := split{matcher: m, behavior: how, invert: j.Invert}
		if expr := j.Pattern.Regex; expr != nil && how == isolated && !j.Invert {
			s.seams, s.inner = seamsOf[*expr], *expr == threeDigitsExpr || *expr == cjkExpr
		}
		return []splitter{s}, nil
	case "ByteLevel":
		var steps []splitter
		if j.AddPrefixSpace == nil || *j.AddPrefixSpace {
			steps = append(steps, prefixSpace{})
		}
		if j.UseRegex == nil || *j.UseRegex {
			steps = append(steps, split{matcher: scanner(scanGPT2), seams: seamsOf[gpt2Expr]})
		}
		p.byteLevel = true
		return steps, nil
	case "Metaspace":
		scheme, err := metaspaceScheme(j.PrependScheme, j.AddPrefixSpace)
		if err != nil {
			return nil, err
		}
		if utf8.RuneCountInString(j.Replacement) != 1 {
			return nil, fmt.Errorf("the replacement of Metaspace is %q, not one character", j.Replacement)
		}
		if scheme == prependFirst && p.afterRemoval {
			return nil, errors.New("prepend_scheme first of Metaspace is not supported after a normalizer that changes the start of a text")
		}
		return []splitter{metaspace{j.Replacement, scheme, j.Split == nil || *j.Split}}, nil
	case "Digits":
		if !j.IndividualDigits {
			how = contiguous
		}
		return []splitter{split{matcher: scanner(scanDigit), behavior: how, inner: how == isolated || how == contiguous}}, nil
	case "Punctuation":
		return []splitter{split{matcher: of(propPunct), behavior: how}}, nil
	case "Whitespace":
		return []splitter{split{matcher: scanner(scanWhitespaceStep), behavior: removed, invert: true}}, nil
	case "WhitespaceSplit":
		return []splitter{split{matcher: of(propSpace), behavior: removed}}, nil
	}
	return nil, fmt.Errorf("type %s is not supported: only Sequence, Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace "+
		"and WhitespaceSplit are", j.Type)
}

// coversAll has the expressions of which every character of any text belongs to a match.
var coversAll = map[string]bool{gpt2Expr: true, llama3Expr: true, qwen2Expr: true, gpt4oExpr: true, tekkenExpr: true}

// metaspaceScheme reads prepend_scheme, or what files had before it.
func metaspaceScheme(scheme string, addPrefixSpace *bool) (prepend, error) {
	s, ok := map[string]prepend{"": prependAlways, "always": prependAlways, "first": prependFirst, "never": prependNever}[scheme]
	switch {
	case !ok:
		return 0, fmt.Errorf("prepend_scheme %q of Metaspace is not supported", scheme)
	case addPrefixSpace != nil && !*addPrefixSpace && scheme != "" && s != prependNever:
		return 0, errors.New("add_prefix_space of Metaspace contradicts prepend_scheme")
	case addPrefixSpace != nil && !*addPrefixSpace:
		return prependNever, nil
	}
	return s, nil
}
