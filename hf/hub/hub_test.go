package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/hf/hub/hubtest"
	"github.com/millrace/millrace/internal/surroundings"
)

var gsm8k = Repo{Dataset, "openai/gsm8k", Main}

// start is a hub that has a data set.
func start(t *testing.T) (*hubtest.Server, *Hub) {
	s, _ := hubtest.Start(t)
	s.Repos["datasets/openai/gsm8k"] = &hubtest.Repo{Files: map[string]string{
		"README.md": "read me", "main/train-00000-of-00001.parquet": strings.Repeat("0123456789", 1000), "main/test-00000-of-00001.parquet": "short", "empty.txt": ""}}
	return s, quick()
}

// quick is the environment's hub, which does not wait before it tries again.
func quick() *Hub {
	h := FromEnv()
	h.pause = time.Microsecond
	return h
}

const train = "main/train-00000-of-00001.parquet"

func fetchAll(h *Hub, r Repo) (*Snapshot, error) {
	s, err := h.Open(context.Background(), r)
	if err != nil {
		return nil, err
	}
	return s, s.Fetch(context.Background(), s.Files...)
}

func wantContents(t *testing.T, s *Snapshot, files map[string]string) {
	t.Helper()
	for name, want := range files {
		f, ok := s.Find(name)
		got, err := os.ReadFile(s.Path(f))
		if !ok || err != nil || string(got) != want {
			t.Errorf("%s: %d bytes, error %v, want %d", name, len(got), err, len(want))
		}
	}
}

func wantLine(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %q", parts)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %v", err)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%q lacks %q", err, p)
		}
	}
}

// The cache that a download leaves is that of huggingface_hub, and serves without the server.
func TestFetch(t *testing.T) {
	server, h := start(t)
	server.PageFiles = 1
	var last string
	h.Progress = func(file string, done, total int64) { last = fmt.Sprint(file, done, total) }
	s, err := fetchAll(h, gsm8k)
	if err != nil {
		t.Fatal(err)
	}
	files := server.Repos["datasets/openai/gsm8k"].Files
	if len(s.Files) != len(files) || s.Commit != hubtest.Commit || s.Partial {
		t.Fatalf("%+v", s)
	}
	wantContents(t, s, files)
	if want := fmt.Sprint(train, 10000, 10000); last != want {
		t.Errorf("the last progress is %q, want %q", last, want)
	}
	root := filepath.Join(h.Cache, "datasets--openai--gsm8k")
	target, err := os.Readlink(filepath.Join(root, "snapshots", hubtest.Commit, train))
	if err != nil || filepath.Dir(target) != filepath.FromSlash("../../../blobs") || len(filepath.Base(target)) != 64 {
		t.Errorf("the file is a link to %q, %v", target, err)
	}
	// printf 'read me' | git hash-object --stdin
	if got, err := os.ReadFile(filepath.Join(root, "blobs", "cec6ad6ede50a03d6adbd5d26bb5be6a4c285c36")); err != nil || string(got) != "read me" {
		t.Errorf("the blob of README.md: %q, %v", got, err)
	}
	if ref, err := os.ReadFile(filepath.Join(root, "refs", "main")); err != nil || string(ref) != hubtest.Commit {
		t.Errorf("refs/main is %q, %v", ref, err)
	}

	n := len(server.Requests)
	for _, offline := range []string{"", "1"} {
		t.Setenv("HF_HUB_OFFLINE", offline)
		for _, revision := range []string{Main, hubtest.Commit} {
			again, err := fetchAll(quick(), Repo{Dataset, "openai/gsm8k", revision})
			if err != nil || again.Dir() != s.Dir() || len(again.Files) != len(files) {
				t.Errorf("offline %q, revision %s: %+v, %v", offline, revision, again, err)
			}
		}
	}
	if len(server.Requests) != n {
		t.Errorf("what the cache has was asked for: %q", server.Requests[n:])
	}
}

// A download resumes where it was: after a cut within one call, and from one call to the next.
func TestResume(t *testing.T) {
	server, h := start(t)
	server.CutAfter[train] = []int{1500, 500}
	if _, err := fetchAll(h, gsm8k); err != nil {
		t.Fatal(err)
	}
	asked := strings.Join(server.Requests, "\n")
	for _, want := range []string{"bytes=1500-", "bytes=2000-"} {
		if !strings.Contains(asked, want) {
			t.Errorf("%s was not asked for: %s", want, asked)
		}
	}

	server, h = start(t)
	server.CutAfter[train] = []int{700, 0, 0, 0, 0}
	_, err := fetchAll(h, gsm8k)
	wantLine(t, err, train, "after 700 of 10000 bytes", "EOF")
	server.CutAfter = nil
	server.Requests = nil
	s, err := fetchAll(h, gsm8k)
	if err != nil {
		t.Fatal(err)
	}
	wantContents(t, s, server.Repos["datasets/openai/gsm8k"].Files)
	if asked := strings.Join(server.Requests, "\n"); !strings.Contains(asked, "bytes=700-") || strings.Contains(asked, "/api/") {
		t.Errorf("the download did not resume where it was: %s", asked)
	}
}

// A server without ranges is read from the beginning. A wrong part of an earlier download is read again.
func TestResumeFromWhatIsWrong(t *testing.T) {
	for name, spoil := range map[string]func(*hubtest.Server, string){
		"no ranges": func(s *hubtest.Server, _ string) { s.NoRanges = true },
		"wrong":     func(_ *hubtest.Server, part string) { os.WriteFile(part, bytes.Repeat([]byte{'z'}, 700), 0o666) },
		"too long":  func(_ *hubtest.Server, part string) { os.WriteFile(part, bytes.Repeat([]byte{'z'}, 70000), 0o666) },
	} {
		t.Run(name, func(t *testing.T) {
			server, h := start(t)
			server.CutAfter[train] = []int{700, 0, 0, 0, 0}
			if _, err := fetchAll(h, gsm8k); err == nil {
				t.Fatal("no error")
			}
			parts, err := filepath.Glob(filepath.Join(h.Cache, "*", "blobs", "*"+incomplete))
			if err != nil || len(parts) != 1 {
				t.Fatal(parts, err)
			}
			server.CutAfter = nil
			spoil(server, parts[0])
			s, err := fetchAll(h, gsm8k)
			if err != nil {
				t.Fatal(err)
			}
			wantContents(t, s, server.Repos["datasets/openai/gsm8k"].Files)
		})
	}
}

// The token goes to the hub and not to the server that it redirects to.
func TestToken(t *testing.T) {
	server, h := start(t)
	repo := server.Repos["datasets/openai/gsm8k"]
	repo.Gated, server.Token = true, "secret"
	_, err := fetchAll(h, gsm8k)
	wantLine(t, err, "gated", "/datasets/openai/gsm8k", "HF_TOKEN")
	if IsAbsent(err) {
		t.Error("what is gated is said to be absent")
	}
	server.Hidden = true
	h.Cache = t.TempDir()
	_, err = fetchAll(h, gsm8k)
	wantLine(t, err, "no such data set", "HF_TOKEN")
	if !IsAbsent(err) {
		t.Error("what is hidden is not said to be absent")
	}
	if IsPassing(err) {
		t.Error("what is absent is said to come back")
	}

	t.Setenv("HF_TOKEN", "wrong")
	_, err = fetchAll(quick(), gsm8k)
	wantLine(t, err, "401", "HF_TOKEN may read")

	t.Setenv("HF_TOKEN", "")
	tokenFile := filepath.Join(os.Getenv("HF_HOME"), "token")
	if err := os.WriteFile(tokenFile, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
	if h := quick(); h.Token != "" {
		t.Errorf("the token is %q", h.Token)
	}
	t.Setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "")
	s, err := fetchAll(quick(), gsm8k)
	if err != nil {
		t.Fatal(err)
	}
	wantContents(t, s, repo.Files)
	if len(server.StorageTokens) > 0 {
		t.Errorf("the storage was sent %q", server.StorageTokens)
	}
	if _, err := h.Open(context.Background(), Repo{Dataset, "openai/none", Main}); !IsAbsent(err) {
		t.Errorf("%v", err)
	}
	_, err = quick().Open(context.Background(), Repo{Dataset, "openai/gsm8k", "v9"})
	wantLine(t, err, `no revision "v9"`)
}

func TestRevision(t *testing.T) {
	server, h := start(t)
	const converted = "refs/convert/parquet"
	server.Repos["datasets/openai/gsm8k"].Revisions = map[string]map[string]string{converted: {"default/train/0000.parquet": "p"}}
	s, err := fetchAll(h, Repo{Dataset, "openai/gsm8k", converted})
	if err != nil || s.Commit != hubtest.CommitOf(converted) {
		t.Fatal(s, err)
	}
	wantContents(t, s, map[string]string{"default/train/0000.parquet": "p"})
	if ref, err := os.ReadFile(filepath.Join(h.Cache, "datasets--openai--gsm8k", "refs", "refs", "convert", "parquet")); err != nil || string(ref) != s.Commit {
		t.Errorf("%q, %v", ref, err)
	}
}

func TestOffline(t *testing.T) {
	server, h := start(t)
	h.Offline = true
	_, err := h.Open(context.Background(), gsm8k)
	wantLine(t, err, "is not in "+h.Cache, "HF_HUB_OFFLINE")
	if !errors.Is(err, ErrOffline) || len(server.Requests) > 0 {
		t.Errorf("%v, requests %q", err, server.Requests)
	}
	// Some files are there: the others are missed.
	h.Offline = false
	s, err := h.Open(context.Background(), gsm8k)
	if err != nil {
		t.Fatal(err)
	}
	readme, _ := s.Find("README.md")
	if err := s.Fetch(context.Background(), readme); err != nil {
		t.Fatal(err)
	}
	h.Offline = true
	_, err = fetchAll(h, gsm8k)
	wantLine(t, err, "3 of 4 files", "HF_HUB_OFFLINE")
	// A cache of huggingface_hub's has no listing: what there is is what there is.
	if err := os.RemoveAll(filepath.Join(h.Cache, "datasets--openai--gsm8k", "listings")); err != nil {
		t.Fatal(err)
	}
	s, err = fetchAll(h, gsm8k)
	if err != nil || !s.Partial || len(s.Files) != 1 || s.Files[0].Name != "README.md" {
		t.Errorf("%+v, %v", s, err)
	}
}

// Nothing that a server says makes a file outside of the snapshot, more bytes than are listed, or room for what it
// claims.
func TestHostileHub(t *testing.T) {
	for _, name := range []string{"../../../evil.txt", "/etc/evil.txt", "a/../../evil.txt", "a//b.txt", ".", "a/..", "a\x1b[2J.txt", "a\nb.txt"} {
		server, h := start(t)
		server.Repos["datasets/openai/gsm8k"].Files[name] = "evil"
		_, err := fetchAll(h, gsm8k)
		wantLine(t, err, "no path inside", fmt.Sprintf("%q", name))
	}
	for name, size := range map[string]int64{"size of -1 ": -1, fmt.Sprint("size of ", int64(1)<<62): 1 << 62} {
		server, h := start(t)
		server.Sizes[train] = size
		_, err := fetchAll(h, gsm8k)
		wantLine(t, err, name, train)
	}

	server, h := start(t)
	server.Repos["datasets/openai/gsm8k"].Files[`..\evil.txt`] = "evil"
	_, err := fetchAll(h, gsm8k)
	wantLine(t, err, `"..\\evil.txt" cannot be a file`)

	server, h = start(t)
	server.Sizes[train] = 1 << 59
	h.FreeBytes = func(string) (int64, error) { return 3e9, nil }
	_, err = fetchAll(h, gsm8k)
	wantLine(t, err, "needs 576460752.3 GB", "3.0 GB left", "HF_HOME")
	if !errors.Is(err, syscall.ENOSPC) {
		t.Error("a disk that is too small is not said to be full")
	}

	server, h = start(t)
	server.Corrupt[train] = true
	_, err = fetchAll(h, gsm8k)
	wantLine(t, err, train, "hash", "try again")
	left, _ := filepath.Glob(filepath.Join(h.Cache, "*", "blobs", "*"+incomplete))
	if len(left) > 0 {
		t.Errorf("%q stays", left)
	}

	server, h = start(t)
	server.Sizes[train] = 10 // of 10000
	_, err = fetchAll(h, gsm8k)
	wantLine(t, err, "hash")
}

// answers serves one answer for everything.
func answers(t *testing.T, answer http.HandlerFunc) *Hub {
	hubtest.Start(t)
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	t.Setenv("HF_ENDPOINT", s.URL)
	return quick()
}

func TestStrangeAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		want   string
	}{
		"page":      {"<html>", "did not answer as a hub does"},
		"no commit": {"{}", "no commit"},
		"hostile":   {`{"sha":"../../../../../../../../../../../../../x"}`, "no commit"},
		"list":      {`{"sha":"` + hubtest.Commit + `"}`, "did not answer as a hub does"},
	} {
		t.Run(name, func(t *testing.T) {
			h := answers(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, c.answer) })
			_, err := h.Open(context.Background(), gsm8k)
			wantLine(t, err, c.want)
		})
	}
	t.Run("pages without end", func(t *testing.T) {
		h := answers(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", `<https://elsewhere.example/again?cursor=1>; rel="next"`)
			fmt.Fprintf(w, `[{"type":"file","path":"a","size":1,"oid":%q}]`, hubtest.Commit)
		})
		_, err := h.Open(context.Background(), Repo{Dataset, "a/b", hubtest.Commit})
		wantLine(t, err, "more than")
	})
	t.Run("endless redirects", func(t *testing.T) {
		h := answers(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/again", http.StatusFound) })
		_, err := h.Open(context.Background(), gsm8k)
		wantLine(t, err, "redirects without end")
	})
	t.Run("no server", func(t *testing.T) {
		h := answers(t, nil)
		h.Endpoint = "http://127.0.0.1:1"
		_, err := h.Open(context.Background(), gsm8k)
		wantLine(t, err, "http://127.0.0.1:1 cannot be reached", "check the network")
		if !IsPassing(err) {
			t.Error("a server that is not there is said to be so for good")
		}
		h.Endpoint = "huggingface.co"
		_, err = h.Open(context.Background(), gsm8k)
		wantLine(t, err, "HF_ENDPOINT")
	})
}

// What passes is tried again, and no longer than that.
func TestRetry(t *testing.T) {
	server, h := start(t)
	server.Failures = maxFailures - 1
	if _, err := fetchAll(h, gsm8k); err != nil {
		t.Error(err)
	}
	server.Failures = maxFailures
	_, err := h.Open(context.Background(), Repo{Dataset, "openai/gsm8k", "v9"})
	wantLine(t, err, "503")
	if !IsPassing(err) {
		t.Error("a 503 is said to stay")
	}
}

// Who is asked to stop does not wait for the next try.
func TestRetryEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		tries, got := 0, make(chan error)
		go func() {
			got <- (&Hub{pause: time.Hour}).retry(ctx, func() (bool, error) { tries++; return false, &refusal{status: 503} })
		}()
		synctest.Wait()
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) || tries != 1 {
			t.Errorf("after %d tries: %v", tries, err)
		}
	})
}

// An attempt that brings next to nothing is a failure: a file takes a bounded number of them.
func TestAttemptsThatBringLittle(t *testing.T) {
	for _, c := range []struct {
		bytes, size int64
		is          bool
	}{{0, 0, false}, {0, 1, false}, {1, 1, true}, {1, 100, true}, {1, 101, false}, {1 << 13, 1 << 20, false},
		{1 << 14, 1 << 20, true}, {1 << 20, 1 << 40, true}, {1<<20 - 1, 1 << 40, false}} {
		if got := gotOn(c.bytes, c.size); got != c.is {
			t.Errorf("%d of %d bytes: %v", c.bytes, c.size, got)
		}
	}
	tries, have := 0, int64(0)
	err := (&Hub{}).retry(t.Context(), func() (bool, error) {
		tries++
		have++
		return gotOn(1, 1<<20), &cutError{io.ErrUnexpectedEOF}
	})
	if err == nil || tries != maxFailures {
		t.Errorf("%d attempts, error %v", tries, err)
	}
}

func TestParse(t *testing.T) {
	for _, name := range []string{"nothing", "./no/such/dir", "../x/y", "a/../b", "a/b@../x", "a/b@a/../../x", "", "a/b/c", "a/b@", "-a/b", "a/b c"} {
		if r, ok := Parse(Dataset, name); ok {
			t.Errorf("%q is %+v", name, r)
		}
	}
	for name, want := range map[string]Repo{"a/b": {Dataset, "a/b", Main}, "a/b.c-d_1@refs/convert/parquet": {Dataset, "a/b.c-d_1", "refs/convert/parquet"}} {
		if r, ok := Parse(Dataset, name); !ok || r != want {
			t.Errorf("%q is %+v", name, r)
		}
	}
}

func TestFromEnv(t *testing.T) {
	hubtest.Start(t) // which sets and restores the variables
	t.Setenv("HOME", "/home/me")
	for _, c := range []struct {
		env  map[string]string
		want *Hub
	}{
		{map[string]string{"HF_HOME": "", "HF_ENDPOINT": ""}, &Hub{Cache: "/home/me/.cache/huggingface/hub", Endpoint: "https://huggingface.co"}},
		{map[string]string{"HF_HOME": "", "XDG_CACHE_HOME": "/c"}, &Hub{Cache: "/c/huggingface/hub"}},
		{map[string]string{"HF_HOME": "~/hf", "HF_HUB_OFFLINE": "yes"}, &Hub{Cache: "/home/me/hf/hub", Offline: true}},
		{map[string]string{"HF_HOME": "$HOME/hf", "TRANSFORMERS_OFFLINE": "1"}, &Hub{Cache: "/home/me/hf/hub", Offline: true}},
		{map[string]string{"HF_HUB_CACHE": "/x", "HUGGINGFACE_HUB_CACHE": "/y", "HF_HUB_OFFLINE": "0"}, &Hub{Cache: "/x"}},
		{map[string]string{"HUGGINGFACE_HUB_CACHE": "/y", "HF_TOKEN": " a\n", "HUGGING_FACE_HUB_TOKEN": "b"}, &Hub{Cache: "/y", Token: "a"}},
		{map[string]string{"HUGGINGFACE_HUB_CACHE": "/y", "HUGGING_FACE_HUB_TOKEN": "b"}, &Hub{Cache: "/y", Token: "b"}},
		{map[string]string{"HF_HUB_CACHE": "/x", "HF_TOKEN": "a", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, &Hub{Cache: "/x"}},
	} {
		t.Run("", func(t *testing.T) {
			for _, name := range []string{"XDG_CACHE_HOME", "TRANSFORMERS_OFFLINE", "HUGGINGFACE_HUB_CACHE", "HUGGING_FACE_HUB_TOKEN"} {
				t.Setenv(name, "")
			}
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			h := FromEnv()
			if h.Cache != c.want.Cache || h.Token != c.want.Token || h.Offline != c.want.Offline || c.want.Endpoint != "" && h.Endpoint != c.want.Endpoint {
				t.Errorf("%v: %q, token %q, offline %v, %s", c.env, h.Cache, h.Token, h.Offline, h.Endpoint)
			}
		})
	}
}

func TestSimilar(t *testing.T) {
	_, h := start(t)
	if got := h.Similar(context.Background(), Repo{Dataset, "gsm/gsm8k", Main}); !slices.Equal(got, []string{"openai/gsm8k"}) {
		t.Errorf("%q", got)
	}
	h.Offline = true
	if got := h.Similar(context.Background(), gsm8k); got != nil {
		t.Errorf("%q", got)
	}
}

const childEnv = "MILLRACE_TEST_FETCH"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if _, err := fetchAll(quick(), gsm8k); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := surroundings.Leave(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// Processes and goroutines that want the same files fetch them once.
func TestTogether(t *testing.T) {
	server, h := start(t)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			child := exec.Command(os.Args[0])
			child.Env = append(os.Environ(), childEnv+"=1")
			if out, err := child.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
		wg.Go(func() {
			if _, err := fetchAll(quick(), gsm8k); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s, err := fetchAll(h, gsm8k)
	if err != nil {
		t.Fatal(err)
	}
	wantContents(t, s, server.Repos["datasets/openai/gsm8k"].Files)
	n := 0
	for _, r := range server.Requests {
		if strings.Contains(r, "/resolve/") && strings.Contains(r, train) {
			n++
		}
	}
	if n != 1 {
		t.Errorf("the file was fetched %d times", n)
	}
}

// A name and a password in HF_ENDPOINT are in no message.
func TestSecretsOfTheEndpointAreNotShown(t *testing.T) {
	_, h := start(t)
	server := strings.TrimPrefix(h.Endpoint, "http://")
	t.Setenv("HF_TOKEN", "")
	ctx := context.Background()
	for _, endpoint := range []string{"http://me:s3cret@" + server, "http://me:s3c/ret@" + server, "me:s3cret@" + server, "http://me:s3cret@127.0.0.1:1", "http://me:s3cret@" + server + "/no"} {
		t.Setenv("HF_ENDPOINT", endpoint)
		h := quick()
		for _, r := range []Repo{{Dataset, "openai/none", Main}, {Dataset, "openai/gsm8k", "no-such-branch"}, {Model, "no/model", Main}} {
			if _, err := h.Open(ctx, r); err == nil || strings.Contains(err.Error(), "s3c") || !strings.Contains(err.Error(), strings.Split(server, ":")[0]) {
				t.Errorf("%s: %v", endpoint, err)
			}
		}
	}
}
