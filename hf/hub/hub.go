package hub

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/below"
)

// RepoKind says what a repository holds.
type RepoKind string

// The kinds of repositories.
const (
	Model   RepoKind = "model"
	Dataset RepoKind = "dataset"
)

// plural is the kind in addresses and in the names of cache directories.
func (k RepoKind) plural() string { return string(k) + "s" }

// name is the kind in a sentence.
func (k RepoKind) name() string {
	if k == Dataset {
		return "data set"
	}
	return string(k)
}

// Repo is a repository at a revision: a branch, a tag or a commit.
type Repo struct {
	Kind     RepoKind
	ID       string // ORG/NAME
	Revision string
}

// Main is the revision that is meant where none is named.
const Main = "main"

// id matches ORG/NAME or ORG/NAME@REVISION as the hub allows it. It cannot be a path out of the cache.
var id = regexp.MustCompile(`^([A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})(?:@([A-Za-z0-9_][A-Za-z0-9._/-]{0,199}))?$`)

var commitHash = regexp.MustCompile(`^[0-9a-f]{40}$`)

// Parse reads a hub id, ORG/NAME or ORG/NAME@REVISION.
func Parse(kind RepoKind, name string) (r Repo, ok bool) {
	match := id.FindStringSubmatch(name)
	if match == nil || strings.Contains(name, "..") {
		return Repo{}, false
	}
	return Repo{kind, match[1], cmp.Or(match[2], Main)}, true
}

// Hub is a cache and a server.
type Hub struct {
	Cache    string // directory
	Endpoint string // such as https://huggingface.co
	Token    string // "": none
	Offline  bool   // the cache alone
	// TokenOverHTTP has the token sent to an endpoint by http, which others in its network can read, where the endpoint is
	// in a private network.
	TokenOverHTTP bool

	// Progress is called now and then with the bytes of a file that are downloaded or uploaded. It may be nil. One Fetch
	// or Push does not call it concurrently.
	Progress func(file string, doneBytes, totalBytes int64)
	// FreeBytes returns the free space of a directory's file system; nil: it is not known. A download that does not fit
	// is not begun.
	FreeBytes func(dir string) (int64, error)

	reached atomic.Bool // the server has answered before
	// pause separates two tries, less in tests.
	pause time.Duration
}

// FromEnv is the hub that the environment describes, read as huggingface_hub does: HF_HUB_CACHE, else HF_HOME/hub, else
// ~/.cache/huggingface/hub; HF_ENDPOINT; HF_TOKEN, else the file HF_TOKEN_PATH or HF_HOME/token, which `hf auth login`
// writes (neither with HF_HUB_DISABLE_IMPLICIT_TOKEN); HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE. The older names
// HUGGINGFACE_HUB_CACHE and HUGGING_FACE_HUB_TOKEN are read, too. MILLRACE_HF_TOKEN_OVER_HTTP is of this program alone.
func FromEnv() *Hub {
	user, home := userAndHome()
	h := &Hub{
		Cache:    CacheFromEnv(),
		Endpoint: strings.TrimRight(cmp.Or(os.Getenv("HF_ENDPOINT"), "https://huggingface.co"), "/"),
		Offline:  isSet("HF_HUB_OFFLINE") || isSet("TRANSFORMERS_OFFLINE"),
		pause:    time.Second,

		TokenOverHTTP: isSet(overHTTPVariable),
	}
	if isSet("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
		return h
	}
	h.Token = strings.TrimSpace(cmp.Or(os.Getenv("HF_TOKEN"), os.Getenv("HUGGING_FACE_HUB_TOKEN")))
	if file := cmp.Or(pathFromEnv("HF_TOKEN_PATH", user), inHome(home, "token")); h.Token == "" && file != "" {
		if doc, err := below.ReadFile(file, 4096); err == nil { // without the file there is no token
			h.Token = strings.TrimSpace(string(doc))
		}
	}
	return h
}

// CacheFromEnv is the directory of the cache that FromEnv takes; "" if the environment names no place for it.
func CacheFromEnv() string {
	user, home := userAndHome()
	return cmp.Or(pathFromEnv("HF_HUB_CACHE", user), pathFromEnv("HUGGINGFACE_HUB_CACHE", user), inHome(home, "hub"))
}

// userAndHome are the home directories of the user and of Hugging Face's programs, "" if they are not known.
func userAndHome() (user, home string) {
	user, _ = os.UserHomeDir() // "": then one of the variables is needed
	home = pathFromEnv("HF_HOME", user)
	if home == "" {
		// Not os.UserCacheDir, which is another place on a Mac.
		cache := pathFromEnv("XDG_CACHE_HOME", user)
		if cache == "" && user != "" {
			cache = filepath.Join(user, ".cache")
		}
		if cache != "" {
			home = filepath.Join(cache, "huggingface")
		}
	}
	return user, home
}

func inHome(home, name string) string {
	if home == "" {
		return ""
	}
	return filepath.Join(home, name)
}

// pathFromEnv reads a path that may begin with ~ or have variables in it, for those who set it where no shell expands
// it.
func pathFromEnv(name, user string) string {
	path := os.ExpandEnv(os.Getenv(name))
	if rest, ok := strings.CutPrefix(path, "~"); ok && user != "" && (rest == "" || rest[0] == '/') {
		return filepath.Join(user, rest)
	}
	return path
}

// isSet reads a switch as huggingface_hub does.
func isSet(name string) bool {
	switch strings.ToUpper(os.Getenv(name)) {
	case "1", "ON", "YES", "TRUE":
		return true
	}
	return false
}

// dir is a repository's place in the cache.
func (h *Hub) dir(r Repo) string { return filepath.Join(h.Cache, folder(r)) }

func folder(r Repo) string { return r.Kind.plural() + "--" + strings.ReplaceAll(r.ID, "/", "--") }

func (h *Hub) snapshotDir(r Repo, commit string) string {
	return filepath.Join(h.dir(r), "snapshots", commit)
}

// secrets may stand before the host of an endpoint: a name and a password.
var secrets = regexp.MustCompile(`^([a-zA-Z]+://)?.*@`)

// shownEndpoint is the endpoint for messages, which others may read.
func (h *Hub) shownEndpoint() string { return secrets.ReplaceAllString(h.Endpoint, "$1") }

// address is a repository's page; models have theirs at the root.
func (h *Hub) address(r Repo) string {
	if r.Kind == Model {
		return h.Endpoint + "/" + r.ID
	}
	return h.Endpoint + "/" + r.Kind.plural() + "/" + r.ID
}

func (h *Hub) api(r Repo) string { return h.Endpoint + "/api/" + r.Kind.plural() + "/" + r.ID }

// Cached is the directory of the commit that the cache has for a revision, and whether it has one. Which of its files
// are there is not looked at.
func (h *Hub) Cached(r Repo) (dir string, ok bool) {
	commit, ok := h.cachedCommit(r)
	if !ok {
		return "", false
	}
	dir = h.snapshotDir(r, commit)
	info, err := os.Stat(dir)
	return dir, err == nil && info.IsDir()
}

// cachedCommit is the commit that a revision was at when it was asked for.
func (h *Hub) cachedCommit(r Repo) (string, bool) {
	if doc, err := below.ReadFile(h.ref(r), 200); err == nil {
		if commit := strings.TrimSpace(string(doc)); commitHash.MatchString(commit) {
			return commit, true
		}
	}
	return r.Revision, commitHash.MatchString(r.Revision)
}

func (h *Hub) ref(r Repo) string {
	return filepath.Join(h.dir(r), "refs", filepath.FromSlash(r.Revision))
}
