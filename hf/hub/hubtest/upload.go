package hubtest

import (
	"bufio"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
)

// Upload records the pushes to a server, and says how it answers them.
type Upload struct {
	ReadOnly     bool   // the token may not write
	PartBytes    int    // of a multipart upload; 0: files are sent whole
	Ignore       string // a file that the repository's .gitignore names; * names all
	RefuseCommit string // why commits are refused
	FailGets     bool   // reads are answered with 503
	RefusePuts   int    // the status of all uploads; 0: they are taken
	// Denial explains a status of 403: in the body, or in a header.
	Denial         string
	DenialInHeader bool
	// CutPuts counts the uploads that break before anything of them was read.
	CutPuts int

	Objects map[string]string // large files that the server has, by SHA-256
	Private map[string]bool   // what was said of repositories when they were made, by address: whether they are private
	Commits []PushedCommit
	Puts    int // uploads that were taken, parts and whole files

	parts map[string][]string // by SHA-256, of uploads under way
}

// PushedCommit is a commit that a push has made.
type PushedCommit struct {
	Repo, Revision, Summary string
	Files                   []string
}

// post answers what a push sends. Models only.
func (s *Server) post(w http.ResponseWriter, r *http.Request, knows bool) {
	if !knows || s.ReadOnly {
		if s.DenialInHeader {
			w.Header().Set("X-Error-Message", s.Denial)
		}
		w.WriteHeader(map[bool]int{true: http.StatusForbidden, false: http.StatusUnauthorized}[knows])
		if !s.DenialInHeader && s.Denial != "" {
			json.NewEncoder(w).Encode(map[string]any{"error": s.Denial})
		}
		return
	}
	switch path := r.URL.Path; {
	case path == "/api/repos/create":
		s.create(w, r)
	case strings.HasSuffix(path, ".git/info/lfs/objects/batch"):
		s.batch(w, r)
	case path == "/complete":
		s.complete(w, r)
	case path == "/verify":
		var of struct{ OID string }
		if json.NewDecoder(r.Body).Decode(&of) != nil || s.Objects[of.OID] == "" {
			w.WriteHeader(http.StatusNotFound)
		}
	case strings.HasPrefix(path, "/api/models/"):
		parts := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/api/"), "/")
		if len(parts) != 5 || s.Repos[strings.Join(parts[:3], "/")] == nil {
			fail(w, http.StatusNotFound, "RepoNotFound")
			return
		}
		s.write(w, r, strings.Join(parts[:3], "/"), parts[3], strings.ReplaceAll(parts[4], "%2F", "/"))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Type, Organization, Name string
		Private                  *bool
	}
	if json.NewDecoder(r.Body).Decode(&asked) != nil || asked.Type != "model" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	name := "models/" + asked.Organization + "/" + asked.Name
	if s.Repos[name] != nil {
		w.WriteHeader(http.StatusConflict)
		return
	}
	s.Repos[name] = &Repo{Files: map[string]string{}}
	if s.Private == nil {
		s.Private = map[string]bool{}
	}
	if asked.Private != nil {
		s.Private[name] = *asked.Private
	}
}

// write answers branch, preupload and commit.
func (s *Server) write(w http.ResponseWriter, r *http.Request, name, verb, revision string) {
	repo := s.Repos[name]
	files, exists := repo.Revisions[revision]
	if revision == "main" {
		files, exists = repo.Files, true
	}
	switch {
	case verb == "branch" && exists:
		w.WriteHeader(http.StatusConflict)
	case verb == "branch":
		if repo.Revisions == nil {
			repo.Revisions = map[string]map[string]string{}
		}
		repo.Revisions[revision] = maps.Clone(repo.Files)
	case !exists:
		fail(w, http.StatusNotFound, "RevisionNotFound")
	case verb == "preupload":
		s.preupload(w, r, files)
	case verb == "commit":
		s.commit(w, r, files, PushedCommit{Repo: name, Revision: revision})
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (s *Server) preupload(w http.ResponseWriter, r *http.Request, files map[string]string) {
	var asked struct {
		Files []struct {
			Path, Sample string
			Size         int64
		}
	}
	if json.NewDecoder(r.Body).Decode(&asked) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	answers := []map[string]any{}
	for _, f := range asked.Files {
		mode := "regular"
		if isLarge(f.Path) {
			mode = "lfs"
		}
		a := map[string]any{"path": f.Path, "uploadMode": mode, "shouldIgnore": f.Path == s.Ignore || s.Ignore == "*",
			"oid": nil}
		if text, ok := files[f.Path]; ok && mode == "lfs" && text != "" {
			a["oid"] = sha256Of(text)
		} else if ok {
			sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(text), text))
			a["oid"] = hex.EncodeToString(sum[:])
		}
		answers = append(answers, a)
	}
	json.NewEncoder(w).Encode(map[string]any{"files": answers})
}

func sha256Of(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func (s *Server) batch(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Operation string
		Objects   []struct {
			OID  string
			Size int64
		}
	}
	if json.NewDecoder(r.Body).Decode(&asked) != nil || asked.Operation != "upload" ||
		r.Header.Get("Accept") != "application/vnd.git-lfs+json" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	answers := []map[string]any{}
	for _, o := range asked.Objects {
		a := map[string]any{"oid": o.OID, "size": o.Size}
		if _, ok := s.Objects[o.OID]; !ok {
			upload := map[string]any{"href": s.StorageURL + "/" + o.OID + "/whole?signature=1",
				"header": map[string]any{"X-Amz-Signed": "yes"}}
			if n := int64(s.PartBytes); n > 0 {
				header := map[string]any{"chunk_size": strconv.FormatInt(n, 10)}
				for i := int64(0); i*n < o.Size; i++ {
					header[fmt.Sprintf("%05d", i+1)] = fmt.Sprintf("%s/%s/%d?signature=1", s.StorageURL, o.OID, i+1)
				}
				upload = map[string]any{"href": s.URL + "/complete", "header": header}
			}
			a["actions"] = map[string]any{"upload": upload, "verify": map[string]any{"href": s.URL + "/verify"}}
		}
		answers = append(answers, a)
	}
	json.NewEncoder(w).Encode(map[string]any{"transfer": "basic", "objects": answers})
}

// put takes a part or a whole file: /SHA-256/NUMBER or /SHA-256/whole.
func (s *Server) put(w http.ResponseWriter, r *http.Request) {
	if s.CutPuts > 0 {
		s.CutPuts--
		panic(http.ErrAbortHandler) // the connection is closed
	}
	if s.RefusePuts > 0 {
		w.WriteHeader(s.RefusePuts)
		return
	}
	oid, part, _ := strings.Cut(strings.Trim(r.URL.Path, "/"), "/")
	text, err := io.ReadAll(r.Body)
	if err != nil || r.URL.Query().Get("signature") == "" || int64(len(text)) != r.ContentLength {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	s.Puts++
	if part == "whole" {
		s.take(w, oid, string(text), r.Header.Get("X-Amz-Signed") == "yes")
		return
	}
	n, err := strconv.Atoi(part)
	if err != nil || n < 1 || n > 1000 {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	if s.parts == nil {
		s.parts = map[string][]string{}
	}
	for len(s.parts[oid]) < n {
		s.parts[oid] = append(s.parts[oid], "")
	}
	s.parts[oid][n-1] = string(text)
	w.Header().Set("ETag", fmt.Sprintf("%q", sha256Of(string(text))))
}

// take keeps a file that has the hash that it was announced with.
func (s *Server) take(w http.ResponseWriter, oid, text string, isRight bool) {
	if !isRight || sha256Of(text) != oid {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if s.Objects == nil {
		s.Objects = map[string]string{}
	}
	s.Objects[oid] = text
}

// complete puts the parts of a file together.
func (s *Server) complete(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		OID   string
		Parts []struct {
			PartNumber int
			ETag       string
		}
	}
	if json.NewDecoder(r.Body).Decode(&asked) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	have := s.parts[asked.OID]
	isRight := len(have) == len(asked.Parts)
	for i, p := range asked.Parts {
		isRight = isRight && p.PartNumber == i+1 && p.ETag == fmt.Sprintf("%q", sha256Of(have[i]))
	}
	s.take(w, asked.OID, strings.Join(have, ""), isRight)
}

// commit changes a revision's files.
func (s *Server) commit(w http.ResponseWriter, r *http.Request, files map[string]string, c PushedCommit) {
	if s.RefuseCommit != "" {
		w.WriteHeader(http.StatusBadRequest)
		json.NewEncoder(w).Encode(map[string]any{"error": s.RefuseCommit})
		return
	}
	lines := bufio.NewScanner(r.Body)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var line struct {
			Key   string
			Value struct{ Summary, Path, Encoding, Content, OID string }
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		v := line.Value
		text, stored := s.Objects[v.OID]
		switch line.Key {
		case "header":
			c.Summary = v.Summary
			continue
		case "file":
			doc, err := base64.StdEncoding.DecodeString(v.Content)
			text, stored = string(doc), err == nil && v.Encoding == "base64"
		}
		if !stored {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		files[v.Path] = text
		c.Files = append(c.Files, v.Path)
	}
	s.Commits = append(s.Commits, c)
	json.NewEncoder(w).Encode(map[string]any{"commitOid": Commit, "commitUrl": s.URL})
}
