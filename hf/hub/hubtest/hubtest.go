// Package hubtest is a small hub for tests: a server of this machine that answers as huggingface.co does, and that
// can be told to misbehave.
//
// Large files (everything but .json, .md and .txt) are stored as large files are: listed with a SHA-256, and
// redirected to a second server, which must not be sent a token.
package hubtest

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Commit has every revision, unless Repo.Revisions says otherwise.
const Commit = "0123456789abcdef0123456789abcdef01234567"

// Repo is a model or a data set.
type Repo struct {
	Files     map[string]string            // at Commit
	Revisions map[string]map[string]string // files of other revisions, whose commits are CommitOf(revision)
	Gated     bool                         // files need the server's token
}

// CommitOf is the commit of a revision other than main.
func CommitOf(revision string) string {
	sum := sha1.Sum([]byte(revision))
	return hex.EncodeToString(sum[:])
}

// Server is a hub. Its fields may be changed between requests; Lock it where a download is under way.
type Server struct {
	sync.Mutex
	URL, StorageURL string

	Repos     map[string]*Repo // by address: datasets/ORG/NAME, models/ORG/NAME
	Token     string           // what gated repositories and hidden ones ask for
	Hidden    bool             // without the token there is nothing
	PageFiles int              // files of a page of listings; 0: all

	// CutAfter has, by file, how many bytes come before the connection breaks, for one request each.
	CutAfter map[string][]int
	Corrupt  map[string]bool  // files that come with other bytes
	Sizes    map[string]int64 // sizes that are listed instead of the true ones
	Failures int              // the number of requests that are answered with 503
	NoRanges bool             // a part is answered with the whole

	Upload // what pushes find and leave

	Requests      []string // "PATH RANGE" of all requests of both servers
	StorageTokens []string // the tokens that the second server was sent
}

// Start is a hub until the end of the test, which the environment of the process names, with an empty cache.
func Start(t testing.TB) (s *Server, home string) {
	s = &Server{Repos: map[string]*Repo{}, CutAfter: map[string][]int{}, Corrupt: map[string]bool{}, Sizes: map[string]int64{}}
	storage := httptest.NewServer(http.HandlerFunc(s.storage))
	t.Cleanup(storage.Close)
	server := httptest.NewServer(http.HandlerFunc(s.hub))
	t.Cleanup(server.Close)
	s.URL, s.StorageURL = server.URL, storage.URL
	home = t.TempDir()
	for k, v := range map[string]string{"HF_HOME": home, "HF_HUB_CACHE": "", "HF_ENDPOINT": server.URL + "/", "HF_TOKEN": "", "HF_TOKEN_PATH": "",
		"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "", "HUGGINGFACE_HUB_CACHE": "", "HUGGING_FACE_HUB_TOKEN": ""} {
		t.Setenv(k, v)
	}
	return s, home
}

func isLarge(name string) bool {
	switch path.Ext(name) {
	case ".json", ".md", ".txt":
		return false
	}
	return true
}

// entry is a file as a listing has it.
func (s *Server) entry(name, text string) map[string]any {
	size := int64(len(text))
	if n, ok := s.Sizes[name]; ok {
		size = n
	}
	blob := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(text), text))
	e := map[string]any{"type": "file", "path": name, "size": size, "oid": hex.EncodeToString(blob[:])}
	if isLarge(name) {
		sum := sha256.Sum256([]byte(text))
		e["lfs"] = map[string]any{"oid": hex.EncodeToString(sum[:]), "size": size, "pointerSize": 130}
	}
	return e
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("X-Error-Code", code)
	w.WriteHeader(status)
}

func (s *Server) hub(w http.ResponseWriter, r *http.Request) {
	s.Lock()
	defer s.Unlock()
	s.Requests = append(s.Requests, r.URL.Path+" "+r.Header.Get("Range"))
	if isFailing := s.FailGets && r.Method == http.MethodGet; s.Failures > 0 || isFailing {
		if !isFailing {
			s.Failures--
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	knows := s.Token != "" && r.Header.Get("Authorization") == "Bearer "+s.Token
	if r.Header.Get("Authorization") != "" && !knows {
		w.WriteHeader(http.StatusUnauthorized) // as the hub answers to a token that it does not know
		return
	}
	if r.Method == http.MethodPost {
		s.post(w, r, knows)
		return
	}
	if kind, ok := strings.CutPrefix(r.URL.Path, "/api/"); ok && !strings.Contains(kind, "/") {
		s.search(w, kind, r.URL.Query().Get("search"))
		return
	}
	if name, ok := strings.CutPrefix(r.URL.Path, "/api/"); ok && s.Repos[name] != nil && (!s.Hidden || knows) {
		json.NewEncoder(w).Encode(map[string]any{"private": s.Private[name]})
		return
	}
	// /api/datasets/ORG/NAME/tree/COMMIT, /datasets/ORG/NAME/resolve/COMMIT/FILE, /ORG/NAME/resolve/COMMIT/FILE
	parts := strings.Split(strings.Trim(r.URL.EscapedPath(), "/"), "/")
	isAPI := parts[0] == "api"
	if isAPI {
		parts = parts[1:]
	}
	if parts[0] != "models" && parts[0] != "datasets" {
		parts = append([]string{"models"}, parts...)
	}
	if len(parts) < 5 {
		fail(w, http.StatusNotFound, "")
		return
	}
	repo := s.Repos[strings.Join(parts[:3], "/")]
	if repo == nil || s.Hidden && !knows {
		status := http.StatusUnauthorized // to strangers the hub does not say what there is
		if knows {
			status = http.StatusNotFound
		}
		fail(w, status, "RepoNotFound")
		return
	}
	revision := strings.NewReplacer("%2F", "/").Replace(parts[4])
	files, commit := repo.Files, Commit
	if revision != "main" && revision != Commit {
		files = nil
		for name, other := range repo.Revisions {
			if revision == name || revision == CommitOf(name) {
				files, commit = other, CommitOf(name)
			}
		}
		if files == nil {
			fail(w, http.StatusNotFound, "RevisionNotFound")
			return
		}
	}
	switch {
	case isAPI && parts[3] == "revision":
		json.NewEncoder(w).Encode(map[string]any{"sha": commit})
	case isAPI && parts[3] == "tree":
		s.tree(w, r, files)
	case !isAPI && parts[3] == "resolve":
		if repo.Gated && !knows {
			fail(w, http.StatusUnauthorized, "GatedRepo")
			return
		}
		name := strings.TrimPrefix(r.URL.Path, "/"+strings.Join(parts[:5], "/")+"/")
		if parts[0] == "models" {
			name = strings.TrimPrefix(r.URL.Path, "/"+strings.Join(parts[1:5], "/")+"/")
		}
		text, ok := files[name]
		if !ok {
			fail(w, http.StatusNotFound, "EntryNotFound")
			return
		}
		if isLarge(name) {
			http.Redirect(w, r, s.StorageURL+"/"+strings.Join(parts[:3], "/")+"/"+commit+"/"+name+"?signature=1", http.StatusFound)
			return
		}
		s.send(w, r, name, text)
	default:
		fail(w, http.StatusNotFound, "")
	}
}

func (s *Server) search(w http.ResponseWriter, kind, text string) {
	found := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(s.Repos)) {
		if id, ok := strings.CutPrefix(name, kind+"/"); ok && strings.Contains(id, text) {
			found = append(found, map[string]any{"id": id})
		}
	}
	json.NewEncoder(w).Encode(found)
}

func (s *Server) tree(w http.ResponseWriter, r *http.Request, files map[string]string) {
	names := slices.Sorted(maps.Keys(files))
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	page := names[min(from, len(names)):]
	if s.PageFiles > 0 && len(page) > s.PageFiles {
		page = page[:s.PageFiles]
		next := fmt.Sprintf("%s%s?recursive=true&cursor=%d", s.URL, r.URL.EscapedPath(), from+s.PageFiles)
		w.Header().Set("Link", "<"+next+`>; rel="next"`)
	}
	entries := []map[string]any{{"type": "directory", "path": "data", "size": 0, "oid": Commit}}
	for _, name := range page {
		entries = append(entries, s.entry(name, files[name]))
	}
	json.NewEncoder(w).Encode(entries)
}

// storage answers for large files.
func (s *Server) storage(w http.ResponseWriter, r *http.Request) {
	s.Lock()
	defer s.Unlock()
	s.Requests = append(s.Requests, r.URL.Path+" "+r.Header.Get("Range"))
	if token := r.Header.Get("Authorization"); token != "" {
		s.StorageTokens = append(s.StorageTokens, token)
	}
	if r.Method == http.MethodPut {
		s.put(w, r)
		return
	}
	parts := strings.SplitN(strings.Trim(r.URL.Path, "/"), "/", 5)
	repo := s.Repos[strings.Join(parts[:min(3, len(parts))], "/")]
	if len(parts) < 5 || repo == nil {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	files := repo.Files
	for name, other := range repo.Revisions {
		if CommitOf(name) == parts[3] {
			files = other
		}
	}
	s.send(w, r, parts[4], files[parts[4]])
}

// send answers with a file from where the request says, as far as the connection holds.
func (s *Server) send(w http.ResponseWriter, r *http.Request, name, text string) {
	if s.Corrupt[name] {
		text = strings.Repeat("x", len(text))
	}
	from := 0
	if r := r.Header.Get("Range"); r != "" && !s.NoRanges {
		fmt.Sscanf(r, "bytes=%d-", &from)
		if from >= len(text) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(text)-1, len(text)))
	}
	rest := text[from:]
	w.Header().Set("Content-Length", strconv.Itoa(len(rest)))
	if from > 0 {
		w.WriteHeader(http.StatusPartialContent)
	}
	if cuts := s.CutAfter[name]; len(cuts) > 0 {
		s.CutAfter[name] = cuts[1:]
		rest = rest[:min(cuts[0], len(rest))] // less than was announced: the connection is closed
	}
	w.Write([]byte(rest))
}
