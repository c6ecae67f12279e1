package data

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/spelling"
)

// registryName is the file in which LLaMA-Factory describes data sets.
const registryName = "dataset_info.json"

// registryEntry describes a data set in LLaMA-Factory's registry, see data/README.md there. Keys that it does not know
// are errors here, since what they ask for would be left out silently.
type registryEntry struct {
	FileName   string            `json:"file_name"`
	Formatting string            `json:"formatting"`
	Ranking    bool              `json:"ranking"`
	Columns    map[string]string `json:"columns"`
	Tags       map[string]string `json:"tags"`
	NumSamples int               `json:"num_samples"`
	HubURL     string            `json:"hf_hub_url"`
	ModelScope string            `json:"ms_hub_url"`
	OpenMind   string            `json:"om_hub_url"`
	ScriptURL  string            `json:"script_url"`
	CloudFile  string            `json:"cloud_file_name"`
	Subset     string            `json:"subset"`
	Split      string            `json:"split"`
	Folder     string            `json:"folder"`
}

// registry is the path of the registry that a source with a name and no type names.
func (s Source) registry() string {
	if info, err := os.Stat(s.Path); err == nil && info.IsDir() {
		return filepath.Join(s.Path, registryName)
	}
	return s.Path
}

// checkRegistered refuses files that are not below the directory of their registry, as package below has it: a registry
// from elsewhere could have other files of the user read.
func (s Source) checkRegistered(files []string) error {
	path := s.registry()
	for _, name := range files {
		if err := insideOf(filepath.Dir(path), name); err != nil {
			return fmt.Errorf("%s: %s: a file is not below the registry's directory: %w; to use it all the same, name it in "+
				"an entry without name: path, type, and the columns and tags of %s as keys",
				path, shown(s.Name), err, shown(s.Name))
		}
	}
	return nil
}

// insideOf is an error for a file that links lead out of a directory, or that is not below it.
func insideOf(dir, name string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	full, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(dir, full)
	if err != nil || !filepath.IsLocal(rel) {
		return fmt.Errorf("%s is elsewhere", name)
	}
	_, err = below.Stat(dir, rel)
	return err
}

// fromRegistry is the source that an entry of a registry describes, and the directory that it names in a data set of
// the hub; other sources are themselves.
func (s Source) fromRegistry() (out Source, folder string, err error) {
	if s.Name == "" {
		return s, "", nil
	}
	if err := s.checkNamed(); err != nil {
		return s, "", err
	}
	path := s.registry()
	doc, err := readSmall(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, "", fmt.Errorf("dataset %s: there is no %s: path must name LLaMA-Factory's %s or its directory where there is a name and no type",
			s.Name, path, registryName)
	case err != nil:
		return s, "", fmt.Errorf("dataset %s: %w", s.Name, err)
	}
	var all map[string]json.RawMessage
	if err := budget.Unmarshal(doc, &all); isTypeError(err) {
		return s, "", fmt.Errorf("%s: it is not an object with data sets by name, as LLaMA-Factory's %s is", path, registryName)
	} else if err != nil {
		return s, "", fmt.Errorf("%s: %w", path, err)
	}
	raw, ok := all[s.Name]
	if !ok {
		names := nearestFirst(s.Name, slices.Sorted(maps.Keys(all)))
		return s, "", fmt.Errorf("%s: there is no data set %q; it has %s", path, s.Name, someOf(names))
	}
	fail := func(format string, args ...any) (Source, string, error) {
		return s, "", fmt.Errorf("%s: %s: %s", path, s.Name, fmt.Sprintf(format, args...))
	}
	var e registryEntry
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		return fail("%v", err)
	}
	for _, media := range []string{"images", "videos", "audios"} {
		if e.Columns[media] != "" {
			return fail("it has %s: %s", media, onlyText)
		}
	}
	out = Source{MaxSamples: s.MaxSamples, Weight: s.Weight, BadRows: s.BadRows, Opening: s.Opening, Ignore: s.Ignore}
	out.Path = filepath.Join(filepath.Dir(path), filepath.FromSlash(e.FileName))
	switch elsewhere := cmp.Or(e.ModelScope, e.OpenMind, e.ScriptURL, e.CloudFile); {
	case filepath.IsAbs(e.FileName):
		out.Path = e.FileName
	case e.FileName != "":
	case e.HubURL != "":
		out.Path, out.Name, out.Split = e.HubURL, e.Subset, e.Split
		folder = strings.Trim(strings.TrimPrefix(e.Folder, "./"), "/")
		if out.local() {
			return fail("hf_hub_url is %q, which is a path here or no hub id (ORG/NAME): name the set with path and type", e.HubURL)
		}
	case elsewhere != "":
		return fail("it is elsewhere (%s), not in a file: download it, and set file_name or name the files with path and type", elsewhere)
	default:
		return fail("it has no file_name and no hf_hub_url")
	}
	if _, err := os.Stat(out.Path); e.FileName != "" && errors.Is(err, fs.ErrNotExist) && !strings.ContainsAny(e.FileName, "*?[") {
		return fail("its file %s is not there; of the registry's files there are %s",
			e.FileName, someOf(presentEntries(path, all)))
	}
	if out.MaxSamples == 0 {
		out.MaxSamples = e.NumSamples
	}
	if err := out.setFormat(e); err != nil {
		return fail("%v", err)
	}
	if s.Tools == DropTools {
		out.Tools = DropTools
	}
	if err := out.Validate(); err != nil {
		return fail("%v", err)
	}
	return out, folder, nil
}

// setFormat takes type, columns and tags from an entry.
func (s *Source) setFormat(e registryEntry) error {
	formatting := cmp.Or(e.Formatting, "alpaca")
	var known []string
	for _, f := range types {
		known = append(known, f.formatting)
	}
	i := slices.Index(known, formatting)
	if i < 0 {
		return fmt.Errorf("formatting is %q: known are %s", e.Formatting, listed(known, "and"))
	}
	f := types[i]
	// A set of which only the prompt is known is a text to be continued, which LLaMA-Factory uses in its stage pt.
	if formatting == "alpaca" && len(e.Columns) == 1 && e.Columns["prompt"] != "" {
		f, s.Lines = Text.format(), true
	}
	isOpenAI := f.isConversation && f.tags == (Tags{}) // which has its tags in its name
	switch isRanked := e.Ranking || e.Columns["chosen"] != "" || e.Columns["rejected"] != ""; {
	case isRanked && e.Columns["kto_tag"] != "":
		return errors.New("it has ranking and kto_tag: a set has pairs, or answers with a label")
	case isRanked:
		f = types[slices.IndexFunc(types, func(f *format) bool { return f.isPair })]
	case e.Columns["kto_tag"] != "":
		f = types[slices.IndexFunc(types, func(f *format) bool { return f.isLabeled })]
	}
	s.Type = f.name
	columns, tags := map[string]*string{}, map[string]*string{}
	for column, key := range f.columns {
		at := slices.IndexFunc(entryKeys, func(k entryKey) bool { return k.name == key })
		columns[column] = entryKeys[at].of(s)
	}
	if t := &s.Tags; f.tags != (Tags{}) {
		tags = map[string]*string{"role_tag": &t.Role, "content_tag": &t.Content, "user_tag": &t.User,
			"assistant_tag": &t.Assistant, "observation_tag": &t.Observation, "function_tag": &t.Function,
			"system_tag": &t.System}
	}
	set := func(what string, values map[string]string, known map[string]*string) error {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			place, ok := known[key]
			if !ok {
				return fmt.Errorf("%s has %q, which formatting %s does not have here; known are %s", what, key, s.Type, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
			}
			*place = values[key]
		}
		return nil
	}
	err := set("columns", e.Columns, columns)
	if err != nil || isOpenAI {
		return err
	}
	return set("tags", e.Tags, tags)
}

// presentEntries returns the names of a registry's data sets whose files are there.
func presentEntries(path string, all map[string]json.RawMessage) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		var e registryEntry
		if json.Unmarshal(all[name], &e) != nil || e.FileName == "" {
			continue
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(path), filepath.FromSlash(e.FileName))); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// mostNames bounds the names that an error lists.
const mostNames = 12

// nearestFirst sorts names, if they are too many to list, by how many letters have to be changed to make them another
// one. Those that are as near keep their order, and so do more names than anybody means.
func nearestFirst(name string, names []string) []string {
	if len(names) <= mostNames || len(names) > 10_000 {
		return names
	}
	names = slices.Clone(names)
	distance := map[string]int{}
	for _, n := range names {
		distance[n] = spelling.Distance(name, n)
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(distance[a], distance[b]) })
	return names
}

// someOf lists names, of which there may be many or none.
func someOf(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	var listed []string
	for _, name := range names[:min(len(names), mostNames)] {
		listed = append(listed, shown(name))
	}
	list := strings.Join(listed, ", ")
	if more := len(names) - mostNames; more > 0 {
		list = fmt.Sprintf("%s and %d more", list, more)
	}
	return list
}

// shown is a name from a file for a message: as it is, or quoted and cut where it would break the line or fill it.
func shown(name string) string {
	const most = 100
	if name == "" || len(name) > most || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Sprintf("%.*q", most, name)
	}
	return name
}
