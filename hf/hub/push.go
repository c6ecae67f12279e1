package hub

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
)

// PushOptions say how files are pushed.
type PushOptions struct {
	Private bool   // a repository that does not exist is made private
	Message string // of the commit
}

// Pushed describes what Push did.
type Pushed struct {
	Repo      string   `json:"repo"`
	Revision  string   `json:"revision"`
	URL       string   `json:"url"`
	Commit    string   `json:"commit,omitempty"` // "" if nothing has changed, or the server does not say it
	Files     int      `json:"files"`            // in the commit
	Unchanged int      `json:"unchanged"`        // files that the revision has already
	SentBytes int64    `json:"sent_bytes"`       // of large files
	Present   int      `json:"present"`          // large files in the commit that the server had, of an earlier push
	Ignored   []string `json:"ignored"`          // that the repository's .gitignore names
}

// preuploadFiles bounds the files that one request asks for, as huggingface_hub does.
const preuploadFiles = 256

// sampleBytes bounds the part of a file that the server sees when it decides how the file is stored.
const sampleBytes = 512

// Push makes a commit of files in a model repository, on a branch that is the Revision of r; both are made if they do
// not exist. Other files of the repository stay. Large files are uploaded first, each only if the server lacks it: a
// push that was interrupted continues with the other files, and a commit has all of its files or does not exist.
//
// Source: huggingface_hub, hf_api.py (create_repo, create_branch), _commit_api.py and lfs.py; the Git LFS batch API.
func (h *Hub) Push(ctx context.Context, r Repo, files []Upload, o PushOptions) (*Pushed, error) {
	if err := h.mayPush(); err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, errors.New("there is no file to push")
	}
	p := &push{hub: h, repo: r, done: &Pushed{Repo: r.ID, Revision: r.Revision, Ignored: []string{}}}
	p.done.URL = h.shownEndpoint() + strings.TrimPrefix(h.address(r), h.Endpoint)
	if r.Revision != Main {
		p.done.URL += "/tree/" + url.PathEscape(r.Revision)
	}
	for _, f := range files {
		info, err := f.stat()
		if err != nil {
			return nil, err
		}
		p.files = append(p.files, &pushFile{Upload: f, info: info})
	}
	if err := p.checkUnchanged(); err != nil {
		return nil, err
	}
	if err := p.makeRepo(ctx, o.Private); err != nil {
		return nil, err
	}
	for batch := range slices.Chunk(p.files, preuploadFiles) {
		if err := p.preupload(ctx, batch); err != nil {
			return nil, err
		}
	}
	for _, f := range p.files {
		err := p.prepare(ctx, f)
		if errors.Is(err, fs.ErrNotExist) { // it was there before
			err = errChanged
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	if len(p.done.Ignored) == len(files) {
		return nil, fmt.Errorf("the .gitignore of %s leaves out all files of the push: change it there", r.ID)
	}
	if err := p.checkUnchanged(); err != nil {
		return nil, err
	}
	return p.done, p.commit(ctx, cmp.Or(o.Message, "Upload model with millrace"))
}

// mayPush refuses what no server is asked for.
func (h *Hub) mayPush() error {
	switch {
	case h.Offline:
		return errors.New("HF_HUB_OFFLINE is set: unset it to push")
	case h.Token == "":
		return fmt.Errorf("there is no token: set HF_TOKEN to one that may write at %s", h.shownEndpoint())
	}
	return nil
}

// Visibility says who can see a repository that a push would change.
type Visibility string

// The answers of a hub. A push makes a repository that is absent.
const (
	Public  Visibility = "public"
	Private Visibility = "private"
	Absent  Visibility = "new"
)

// Visibility asks the hub who can see a repository.
func (h *Hub) Visibility(ctx context.Context, r Repo) (Visibility, error) {
	if err := h.mayPush(); err != nil {
		return "", err
	}
	var info struct {
		Private bool `json:"private"`
	}
	switch _, err := h.ask(ctx, r, h.api(r)+"?expand=private", &info); {
	case IsAbsent(err):
		return Absent, nil
	case err != nil:
		return "", err
	case info.Private:
		return Private, nil
	}
	return Public, nil
}

// errChanged is the error of a file that is being written, or was replaced: the commit would have files of two models.
var errChanged = &passingError{errors.New("it changed while it was pushed: wait until it is written, and push again")}

// checkUnchanged fails if a path no longer has the file that it had when the push began. Paths are opened more than
// once.
func (p *push) checkUnchanged() error {
	for _, f := range p.files {
		now, err := f.stat()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		if err != nil || !os.SameFile(now, f.info) || now.Size() != f.Size || !now.ModTime().Equal(f.info.ModTime()) {
			return fmt.Errorf("%s: %w", f.Name, errChanged)
		}
	}
	return nil
}

// push is a Push under way.
type push struct {
	hub   *Hub
	repo  Repo
	files []*pushFile
	done  *Pushed
	// bytes of the files that are part of the commit's request
	inlineBytes int64

	reporting sync.Mutex
}

// pushFile is a file of a push.
type pushFile struct {
	Upload
	info               fs.FileInfo // when the push began
	isLarge, isIgnored bool
	// hash of the file that the revision has; "" without such a file, or if the server does not say
	remote string
	hash   string // SHA-256 of a large file, git's blob SHA-1 of others
	text   []byte // of a file that is not large
	isSame bool   // the revision has it
}

// send sends JSON to the endpoint's API and reads an answer into out, unless out is nil. accepted are statuses that are
// right besides 200 and 201; of these nothing is read.
func (p *push) send(ctx context.Context, address, contentType string, body []byte, out any, accepted ...int) error {
	return p.hub.retry(ctx, func() (bool, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
		if err != nil || req.URL.Host == "" {
			return false, fmt.Errorf("HF_ENDPOINT %q is not an address: use one such as https://huggingface.co",
				p.hub.shownEndpoint())
		}
		req.Header.Set("Content-Type", contentType)
		if contentType == lfsType {
			req.Header.Set("Accept", lfsType)
		}
		resp, err := p.hub.do(req)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		switch status := resp.StatusCode; {
		case slices.Contains(accepted, status):
			return false, nil
		case status != http.StatusOK && status != http.StatusCreated:
			return false, p.refused(resp, cancel)
		case out == nil:
			return false, nil
		}
		return false, p.hub.readAnswer(ctx, cancel, resp, out)
	})
}

// refused says what an answer means to someone who writes; cancel ends the request if the answer stops.
func (p *push) refused(resp *http.Response, cancel context.CancelCauseFunc) error {
	err := p.hub.refused(p.repo, resp)
	var r *refusal
	if !errors.As(err, &r) || r.status >= 500 {
		return err
	}
	advice := ""
	switch r.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		r.text = fmt.Sprintf("%s answers %s", p.hub.shownEndpoint(), resp.Status)
		advice = "; check that HF_TOKEN is a token that may write to " + p.repo.ID
	case http.StatusRequestEntityTooLarge:
		r.text = fmt.Sprintf("%s answers %s: the request is too large", p.hub.shownEndpoint(), resp.Status)
		advice = "; push fewer files at a time"
	case http.StatusBadRequest, http.StatusConflict, http.StatusUnprocessableEntity:
		advice = "; check the name, the branch and the files"
	}
	// Often only the server says why: storage that is full, a name that is taken, a card whose head is not valid.
	if said := reason(resp, cancel); said != "" {
		r.text += fmt.Sprintf(": %.500q", said)
	}
	r.text += advice
	return r
}

// reason returns a server's words on its refusal; "" without any.
func reason(resp *http.Response, cancel context.CancelCauseFunc) string {
	body := newStallReader(resp.Body, cancel, noData)
	defer body.timer.Stop()
	var said struct {
		Error string `json:"error"`
	}
	doc, _ := io.ReadAll(io.LimitReader(body, 64<<10)) // what cannot be read says nothing
	_ = json.Unmarshal(doc, &said)
	return cmp.Or(said.Error, resp.Header.Get("X-Error-Message"))
}

// makeRepo makes the repository and the branch, unless they exist.
func (p *push) makeRepo(ctx context.Context, private bool) error {
	org, name, _ := strings.Cut(p.repo.ID, "/")
	wanted := map[string]any{"type": string(p.repo.Kind), "organization": org, "name": name}
	if private { // without the key the organization's own default counts
		wanted["private"] = true
	}
	body, err := json.Marshal(wanted)
	if err != nil {
		return err
	}
	err = p.send(ctx, p.hub.Endpoint+"/api/repos/create", "application/json", body, nil, http.StatusConflict)
	if r := (*refusal)(nil); errors.As(err, &r) && r.status == http.StatusForbidden {
		// The token may not make repositories; it may write to one that exists.
		main := p.repo
		main.Revision = Main
		_, absent := p.hub.askCommit(ctx, main)
		if IsAbsent(absent) {
			return fmt.Errorf("the repository does not exist and cannot be made: %w", err)
		}
		err = absent
	}
	if err != nil {
		return err
	}
	if p.repo.Revision == Main {
		return nil
	}
	return p.send(ctx, p.hub.api(p.repo)+"/branch/"+url.PathEscape(p.repo.Revision), "application/json", []byte("{}"),
		nil, http.StatusConflict)
}

// preupload asks how files are stored, and what the revision has of them.
func (p *push) preupload(ctx context.Context, files []*pushFile) error {
	type asked struct {
		Path   string `json:"path"`
		Sample string `json:"sample"`
		Size   int64  `json:"size"`
	}
	var question struct {
		Files []asked `json:"files"`
	}
	for _, f := range files {
		sample, err := readHead(f.Upload)
		if err != nil {
			return err
		}
		question.Files = append(question.Files, asked{f.Name, base64.StdEncoding.EncodeToString(sample), f.Size})
	}
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	var answer struct {
		Files []struct {
			Path         string `json:"path"`
			UploadMode   string `json:"uploadMode"`
			ShouldIgnore bool   `json:"shouldIgnore"`
			OID          string `json:"oid"`
		} `json:"files"`
	}
	address := p.hub.api(p.repo) + "/preupload/" + url.PathEscape(p.repo.Revision)
	if err := p.send(ctx, address, "application/json", body, &answer); err != nil {
		return err
	}
	told := map[string]bool{}
	for _, a := range answer.Files {
		i := slices.IndexFunc(files, func(f *pushFile) bool { return f.Name == a.Path })
		if i < 0 || a.UploadMode != "lfs" && a.UploadMode != "regular" {
			return fmt.Errorf("%s did not answer as a hub does: it stores %.200q as %.20q", p.hub.shownEndpoint(), a.Path,
				a.UploadMode)
		}
		// git has no large files of no bytes.
		files[i].isLarge, files[i].isIgnored, files[i].remote = a.UploadMode == "lfs" && files[i].Size > 0, a.ShouldIgnore,
			a.OID
		told[a.Path] = true
	}
	for _, f := range files {
		if !told[f.Name] {
			return fmt.Errorf("%s did not answer as a hub does: it does not say how %q is stored", p.hub.shownEndpoint(), f.Name)
		}
	}
	return nil
}

func readHead(u Upload) ([]byte, error) {
	f, err := u.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, sampleBytes))
}

// maxInlineBytes bounds the files that are part of the commit's request, which are in memory at a time. A hub takes
// files of at most 10 MB so.
const maxInlineBytes = 64 << 20

// readSized reads a file that must have the size that it had.
func readSized(u Upload) ([]byte, error) {
	f, err := u.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, u.Size+1))
	if err == nil && int64(len(text)) != u.Size {
		err = errChanged
	}
	return text, err
}

// prepare brings a file to where a commit can name it.
func (p *push) prepare(ctx context.Context, f *pushFile) (err error) {
	switch {
	case f.isIgnored:
		p.done.Ignored = append(p.done.Ignored, f.Name)
		return nil
	case !f.isLarge:
		if p.inlineBytes += f.Size; p.inlineBytes > maxInlineBytes {
			return fmt.Errorf("%s did not answer as a hub does: it wants more than %d MiB of files in the commit itself",
				p.hub.shownEndpoint(), maxInlineBytes>>20)
		}
		if f.text, err = readSized(f.Upload); err != nil {
			return err
		}
		sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(f.text)), f.text...))
		f.hash = hex.EncodeToString(sum[:])
	default:
		if f.hash, err = hashFile(ctx, f.Upload); err != nil {
			return err
		}
	}
	if f.isSame = f.hash == f.remote; f.isSame {
		p.done.Unchanged++
		return nil
	}
	p.done.Files++
	if f.isLarge {
		return p.upload(ctx, f)
	}
	return nil
}

// hashFile is the SHA-256 of a file.
func hashFile(ctx context.Context, u Upload) (string, error) {
	f, err := u.open()
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := copyWhile(ctx, sum, f)
	if err != nil {
		return "", err
	}
	if n != u.Size {
		return "", errChanged
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// commit makes the files visible, if any has changed.
func (p *push) commit(ctx context.Context, message string) error {
	if p.done.Files == 0 {
		return nil
	}
	summary, description, _ := strings.Cut(message, "\n")
	var body bytes.Buffer
	lines := json.NewEncoder(&body)
	add := func(key string, value map[string]any) {
		_ = lines.Encode(map[string]any{"key": key, "value": value}) // text and numbers always marshal
	}
	add("header", map[string]any{"summary": summary, "description": strings.TrimSpace(description)})
	for _, f := range p.files {
		switch {
		case f.isIgnored || f.isSame:
		case f.isLarge:
			add("lfsFile", map[string]any{"path": f.Name, "algo": "sha256", "oid": f.hash, "size": f.Size})
		default:
			add("file", map[string]any{"path": f.Name, "encoding": "base64",
				"content": base64.StdEncoding.EncodeToString(f.text)})
		}
	}
	var answer struct {
		Commit string `json:"commitOid"`
	}
	address := p.hub.api(p.repo) + "/commit/" + url.PathEscape(p.repo.Revision)
	if err := p.send(ctx, address, "application/x-ndjson", body.Bytes(), &answer); err != nil {
		return err
	}
	if commitHash.MatchString(answer.Commit) {
		p.done.Commit = answer.Commit
	}
	return nil
}
