package hf

import (
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The hub's local cache, which Python's huggingface_hub shares, is
//
//	models--ORG--NAME/refs/REVISION            the commit that a branch or tag was at
//	models--ORG--NAME/snapshots/COMMIT/FILE    links into blobs
//	models--ORG--NAME/blobs/HASH               contents: SHA-256 of large files, git's blob SHA-1 of others
//
// Source: "Understand caching" in the huggingface_hub documentation.

// hubID matches ORG/NAME or ORG/NAME@REVISION as the hub allows it. It cannot be a path out of the cache.
var hubID = regexp.MustCompile(`^([A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})(?:@([A-Za-z0-9_][A-Za-z0-9._/-]{0,199}))?$`)

// ResolveModel finds the local directory of a model: a path that exists; else a hub id, ORG/NAME or ORG/NAME@REVISION, in the
// cache ($HF_HUB_CACHE, $HF_HOME/hub or ~/.cache/huggingface/hub); else it downloads the model's files into the cache from
// $HF_ENDPOINT (https://huggingface.co) with $HF_TOKEN, unless $HF_HUB_OFFLINE is set. A download that was interrupted goes on
// where it was. Progress may be nil.
func ResolveModel(ctx context.Context, idOrPath string, progress func(file string, doneBytes, totalBytes int64)) (string, error) {
	if _, err := os.Stat(idOrPath); err == nil {
		return idOrPath, nil
	}
	match := hubID.FindStringSubmatch(idOrPath)
	if match == nil || strings.Contains(match[2], "..") {
		return "", fmt.Errorf("model %s: there is no such path, and it is not a hub id (ORG/NAME)", quote(idOrPath))
	}
	h, err := hubFromEnv()
	if err != nil {
		return "", fmt.Errorf("model %s: %w", quote(idOrPath), err)
	}
	h.id, h.revision, h.progress = match[1], match[2], progress
	if h.revision == "" {
		h.revision = "main"
	}
	if dir, ok := h.cached(); ok {
		return dir, nil
	}
	if h.offline {
		return "", fmt.Errorf("model %s: there is no such path, it is not in %s, and HF_HUB_OFFLINE is set: download it elsewhere, or unset that", quote(idOrPath), h.cache)
	}
	dir, err := h.download(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", fmt.Errorf("model %s: there is no such path, and it cannot be downloaded: %w", quote(idOrPath), err)
	}
	return dir, nil
}

// hub is one model's place in the cache and on the server.
type hub struct {
	cache, endpoint, token string
	offline                bool
	id, revision           string
	progress               func(file string, doneBytes, totalBytes int64)
}

func hubFromEnv() (*hub, error) {
	h := &hub{cache: os.Getenv("HF_HUB_CACHE"), endpoint: os.Getenv("HF_ENDPOINT"), token: os.Getenv("HF_TOKEN")}
	if h.cache == "" {
		home := os.Getenv("HF_HOME")
		if home == "" {
			// Not os.UserCacheDir, which is another place on a Mac.
			cache := os.Getenv("XDG_CACHE_HOME")
			if cache == "" {
				user, err := os.UserHomeDir()
				if err != nil {
					return nil, fmt.Errorf("no place for a cache: set HF_HOME (%w)", err)
				}
				cache = filepath.Join(user, ".cache")
			}
			home = filepath.Join(cache, "huggingface")
		}
		h.cache = filepath.Join(home, "hub")
	}
	if h.endpoint == "" {
		h.endpoint = "https://huggingface.co"
	}
	h.endpoint = strings.TrimRight(h.endpoint, "/")
	switch strings.ToUpper(os.Getenv("HF_HUB_OFFLINE")) { // as huggingface_hub reads it
	case "1", "ON", "YES", "TRUE":
		h.offline = true
	}
	return h, nil
}

func (h *hub) dir() string {
	return filepath.Join(h.cache, "models--"+strings.ReplaceAll(h.id, "/", "--"))
}

func (h *hub) snapshot(commit string) string { return filepath.Join(h.dir(), "snapshots", commit) }

// cached is the snapshot of the revision, if all files of the model are there.
func (h *hub) cached() (string, bool) {
	commit := h.revision
	if ref, err := readBounded(filepath.Join(h.dir(), "refs", filepath.FromSlash(h.revision)), 200); err == nil {
		commit = strings.TrimSpace(string(ref))
	}
	dir := h.snapshot(commit)
	if !fileName(commit) || !complete(dir) {
		return "", false
	}
	return dir, true
}

// complete reports whether a snapshot has a config and all weights. A snapshot grows file by file while it is downloaded.
func complete(dir string) bool {
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	}
	if !exists(configName) {
		return false
	}
	if exists(weightsName) {
		return true
	}
	doc, err := readBounded(filepath.Join(dir, indexName), maxHeaderBytes)
	if err != nil {
		return false
	}
	shards, err := parseIndex(doc)
	if err != nil {
		return false
	}
	for _, shard := range shards {
		if !exists(shard) {
			return false
		}
	}
	return true
}

// fileName reports whether s names an entry of a directory and nothing else.
func fileName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\\\x00")
}

// hubFile is a file of a model as the hub's API lists it.
type hubFile struct {
	Name   string `json:"rfilename"`
	Size   int64  `json:"size"`
	BlobID string `json:"blobId"` // git's SHA-1 of the blob
	LFS    *struct {
		SHA256 string `json:"sha256"`
	} `json:"lfs"`
}

// rank is 1 for weights and 0 for the small files.
func (f hubFile) rank() int {
	if strings.HasSuffix(f.Name, ".safetensors") {
		return 1
	}
	return 0
}

var hexHash = regexp.MustCompile(`^[0-9a-f]{40}(?:[0-9a-f]{24})?$`)

// hash is the name of the file's blob, and what computes it.
func (f hubFile) hash() (name string, h hash.Hash) {
	if f.LFS != nil {
		return f.LFS.SHA256, sha256.New()
	}
	h = sha1.New()
	fmt.Fprintf(h, "blob %d\x00", f.Size)
	return f.BlobID, h
}

// download brings the model's files into the cache. The reference is written last.
func (h *hub) download(ctx context.Context) (string, error) {
	commit, files, err := h.list(ctx)
	if err != nil {
		return "", err
	}
	// Weights come last: a snapshot that has them then has everything, even if the download was interrupted.
	slices.SortStableFunc(files, func(a, b hubFile) int { return cmp.Compare(a.rank(), b.rank()) })
	for _, f := range files {
		if err := h.downloadFile(ctx, commit, f); err != nil {
			return "", fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	dir := h.snapshot(commit)
	if !complete(dir) {
		return "", fmt.Errorf("%s has no %s or no safetensors weights", h.id, configName)
	}
	if commit != h.revision {
		ref := filepath.Join(h.dir(), "refs", filepath.FromSlash(h.revision))
		if err := os.MkdirAll(filepath.Dir(ref), 0o777); err != nil {
			return "", err
		}
		if err := writeFileWhole(ref, []byte(commit)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// list asks the hub for the commit of the revision and for the files that make up the model: config, sidecars and
// safetensors weights.
func (h *hub) list(ctx context.Context) (commit string, files []hubFile, err error) {
	resp, err := h.get(ctx, h.endpoint+"/api/models/"+h.id+"/revision/"+url.PathEscape(h.revision)+"?blobs=true", 0)
	if err != nil {
		return "", nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", nil, h.refused(resp)
	}
	doc, err := io.ReadAll(io.LimitReader(resp.Body, maxConfigBytes))
	if err != nil {
		return "", nil, err
	}
	var info struct {
		SHA      string    `json:"sha"`
		Siblings []hubFile `json:"siblings"`
	}
	if err := json.Unmarshal(doc, &info); err != nil {
		return "", nil, fmt.Errorf("%s did not answer as a hub does: %w", h.endpoint, err)
	}
	if !hexHash.MatchString(info.SHA) {
		return "", nil, fmt.Errorf("%s did not answer as a hub does: no commit", h.endpoint)
	}
	single := slices.ContainsFunc(info.Siblings, func(f hubFile) bool { return f.Name == weightsName })
	for _, f := range info.Siblings {
		isShard := strings.HasPrefix(f.Name, "model-") && strings.HasSuffix(f.Name, ".safetensors") || f.Name == indexName
		wanted := f.Name == configName || f.Name == weightsName || isShard && !single || slices.Contains(sidecarNames, f.Name)
		if !wanted || !fileName(f.Name) {
			continue
		}
		if name, _ := f.hash(); !hexHash.MatchString(name) || f.Size < 0 {
			return "", nil, fmt.Errorf("%s gives no size and hash of %s", h.endpoint, f.Name)
		}
		files = append(files, f)
	}
	return info.SHA, files, nil
}

// get sends a request for the bytes from offset on. The token goes to the endpoint only: the client drops it when it is
// redirected to another host.
func (h *hub) get(ctx context.Context, address string, offset int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "millrace")
	if h.token != "" {
		req.Header.Set("Authorization", "Bearer "+h.token)
	}
	if offset > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-")
	}
	resp, err := hubClient.Do(req)
	var urlErr *url.Error
	if errors.As(err, &urlErr) { // its text repeats the address, which may hold a signed query
		return nil, fmt.Errorf("%s: %w", h.endpoint, urlErr.Err)
	}
	return resp, err
}

// hubClient gives up on a server that does not answer; a body may take as long as it needs.
var hubClient = &http.Client{Transport: func() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = 30 * time.Second
	return t
}()}

// refused is an error for an answer other than the expected one.
func (h *hub) refused(resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%s answers %s: accept the model's terms there and set HF_TOKEN, or check the name", h.endpoint, resp.Status)
	case http.StatusNotFound:
		return fmt.Errorf("%s does not have it: check the name and the revision %s", h.endpoint, quote(h.revision))
	}
	return fmt.Errorf("%s answers %s", h.endpoint, resp.Status)
}

// downloadFile makes the file appear in the snapshot: its blob is downloaded to HASH.incomplete, going on where an earlier
// attempt ended, checked against its hash, and renamed.
func (h *hub) downloadFile(ctx context.Context, commit string, f hubFile) error {
	name, _ := f.hash()
	blobs, snap := filepath.Join(h.dir(), "blobs"), h.snapshot(commit)
	for _, dir := range []string{blobs, snap} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	blob := filepath.Join(blobs, name)
	if st, err := os.Stat(blob); err != nil || st.Size() != f.Size {
		if err := h.fetchBlob(ctx, commit, f, blob); err != nil {
			return err
		}
	}
	link := filepath.Join(snap, f.Name)
	target := filepath.Join("..", "..", "blobs", name)
	if got, err := os.Readlink(link); err == nil && got == target {
		return nil
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(target, link)
}

func (h *hub) fetchBlob(ctx context.Context, commit string, f hubFile, blob string) error {
	part, err := os.OpenFile(blob+".incomplete", os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer part.Close()
	want, sum := f.hash()
	have, err := io.Copy(sum, io.LimitReader(part, f.Size))
	if err != nil {
		return err
	}
	if have < f.Size {
		resp, err := h.get(ctx, h.endpoint+"/"+h.id+"/resolve/"+commit+"/"+url.PathEscape(f.Name), have)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusOK: // from the beginning, whatever was asked for
			_, sum = f.hash()
			have = 0
		case http.StatusPartialContent:
		default:
			return h.refused(resp)
		}
		if _, err := part.Seek(have, io.SeekStart); err != nil {
			return err
		}
		w := &countingWriter{hub: h, file: f.Name, done: have, total: f.Size}
		n, err := io.Copy(io.MultiWriter(part, sum, w), io.LimitReader(resp.Body, f.Size-have))
		if err != nil {
			return err
		}
		if have += n; have < f.Size {
			return fmt.Errorf("%s ended after %d of %d bytes: try again, it goes on from there", h.endpoint, have, f.Size)
		}
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		os.Remove(part.Name())
		return fmt.Errorf("what was downloaded has hash %s, not %s: try again", got, want)
	}
	if err := part.Truncate(f.Size); err != nil {
		return err
	}
	if err := part.Sync(); err != nil {
		return err
	}
	return os.Rename(part.Name(), blob)
}

// countingWriter reports the progress of one file.
type countingWriter struct {
	hub         *hub
	file        string
	done, total int64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.done += int64(len(p))
	if w.hub.progress != nil {
		w.hub.progress(w.file, w.done, w.total)
	}
	return len(p), nil
}
