package hub

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf/hub/hubtest"
)

// pushable is a hub that takes pushes, and files to push.
func pushable(t *testing.T) (*hubtest.Server, *Hub, []Upload) {
	t.Helper()
	s, _ := hubtest.Start(t)
	s.Token = "hf_secret"
	t.Setenv("HF_TOKEN", s.Token)
	dir := t.TempDir()
	for name, text := range map[string]string{"config.json": "{}", "README.md": "# a card",
		"model.safetensors":                    strings.Repeat("0123456789", 100),
		"additional_chat_templates/tool.jinja": "tools", "empty.bin": "", ".hidden": "no", ".git/config": "no"} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	files, _, err := Uploads(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, quick(), files
}

var mine = Repo{Model, "me/mine", Main}

// wantPushed compares what a revision holds with the files.
func wantPushed(t *testing.T, got map[string]string, files []Upload) {
	t.Helper()
	if len(got) != len(files) {
		t.Errorf("%d files arrived, want %d", len(got), len(files))
	}
	for _, f := range files {
		want, err := os.ReadFile(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := got[f.Name]; !ok || text != string(want) {
			t.Errorf("%s arrived as %q", f.Name, text)
		}
	}
}

func TestPush(t *testing.T) {
	s, h, files := pushable(t)
	if got := len(files); got != 5 {
		t.Fatalf("%d files, want 5", got)
	}
	last := map[string]int64{}
	h.Progress = func(file string, done, total int64) {
		if done > total || done < last[file] {
			t.Errorf("%s: %d of %d after %d", file, done, total, last[file])
		}
		last[file] = done
	}
	done, err := h.Push(context.Background(), mine, files, PushOptions{Private: true, Message: "First\n\nAll of it"})
	if err != nil {
		t.Fatal(err)
	}
	wantPushed(t, s.Repos["models/me/mine"].Files, files)
	if !s.Private["models/me/mine"] || len(s.Commits) != 1 || s.Commits[0].Summary != "First" ||
		done.Commit != hubtest.Commit || done.Files != 5 ||
		done.SentBytes != 1005 || done.URL != s.URL+"/me/mine" || last["model.safetensors"] != 1000 {
		t.Errorf("%+v, commits %+v, private %v", done, s.Commits, s.Private)
	}

	// Once more: nothing has changed, so nothing is sent and there is no commit.
	puts := s.Puts
	done, err = h.Push(context.Background(), mine, files, PushOptions{})
	if err != nil || done.Unchanged != 5 || done.Files != 0 || done.Commit != "" || len(s.Commits) != 1 || s.Puts != puts {
		t.Errorf("%+v, %v, %d commits, %d uploads", done, err, len(s.Commits), s.Puts-puts)
	}

	// A branch that does not exist is made; the large files are there already.
	r := mine
	r.Revision = "runs/a"
	files[0].Path, files[0].Size = files[1].Path, files[1].Size // another text
	done, err = h.Push(context.Background(), r, files, PushOptions{})
	if err != nil || done.Files != 1 || s.Puts != puts {
		t.Errorf("%+v, %v, %d uploads", done, err, s.Puts-puts)
	}
	wantPushed(t, s.Repos["models/me/mine"].Revisions["runs/a"], files)
	if len(s.StorageTokens) > 0 {
		t.Errorf("the server of large files was sent %q", s.StorageTokens)
	}
}

// A file goes in parts where the server asks for that; connections that break and answers of 503 are tried again.
func TestPushThroughFailures(t *testing.T) {
	for _, partBytes := range []int{0, 1, 7, 999, 1000, 5000} {
		s, h, files := pushable(t)
		s.PartBytes, s.CutPuts, s.Failures = partBytes, 2, 2
		if _, err := h.Push(context.Background(), mine, files, PushOptions{}); err != nil {
			t.Fatalf("parts of %d bytes: %v", partBytes, err)
		}
		wantPushed(t, s.Repos["models/me/mine"].Files, files)
		if private, said := s.Private["models/me/mine"]; said {
			t.Errorf("private: %v is sent, and the organization's default does not count", private)
		}
	}
}

// A push that ends in the middle leaves no commit, and the next one sends only what is missing.
func TestPushResumes(t *testing.T) {
	s, h, files := pushable(t)
	s.RefuseCommit = "the card has no head"
	_, err := h.Push(context.Background(), mine, files, PushOptions{})
	wantLine(t, err, "400", "the card has no head", "check")
	puts := s.Puts
	if puts == 0 || len(s.Repos["models/me/mine"].Files) > 0 {
		t.Errorf("%d uploads, %d files", puts, len(s.Repos["models/me/mine"].Files))
	}
	s.RefuseCommit = ""
	done, err := h.Push(context.Background(), mine, files, PushOptions{})
	if err != nil || s.Puts != puts || done.SentBytes != 0 || done.Present != 2 {
		t.Errorf("%+v, %v, %d uploads again", done, err, s.Puts-puts)
	}
	wantPushed(t, s.Repos["models/me/mine"].Files, files)
}

func TestPushRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*hubtest.Server, *Hub)
		want  []string
	}{
		"no token":      {func(_ *hubtest.Server, h *Hub) { h.Token = "" }, []string{"HF_TOKEN", "write"}},
		"offline":       {func(_ *hubtest.Server, h *Hub) { h.Offline = true }, []string{"HF_HUB_OFFLINE"}},
		"another token": {func(_ *hubtest.Server, h *Hub) { h.Token = "hf_other" }, []string{"401", "HF_TOKEN", "me/mine"}},
		"a reader":      {func(s *hubtest.Server, _ *Hub) { s.ReadOnly = true }, []string{"cannot be made", "HF_TOKEN"}},
		"a reader of what exists": {func(s *hubtest.Server, _ *Hub) {
			s.ReadOnly = true
			s.Repos["models/me/mine"] = &hubtest.Repo{Files: map[string]string{}}
		}, []string{"403", "HF_TOKEN", "write to me/mine"}},
		"storage that is full": {func(s *hubtest.Server, _ *Hub) { s.ReadOnly, s.Denial = true, "storage limit reached" },
			[]string{"cannot be made", "403", `"storage limit reached"`, "HF_TOKEN"}},
		"storage that is full, in a header": {func(s *hubtest.Server, _ *Hub) {
			s.ReadOnly, s.Denial, s.DenialInHeader = true, "storage limit reached", true
		}, []string{"403", `"storage limit reached"`}},
		"all ignored": {func(s *hubtest.Server, _ *Hub) { s.Ignore = "*" }, []string{".gitignore", "all files", "me/mine"}},
		"no server": {func(_ *hubtest.Server, h *Hub) { h.Endpoint = "http://user:pass@127.0.0.1:1" },
			[]string{"cannot be reached"}},
		"no address":  {func(_ *hubtest.Server, h *Hub) { h.Endpoint = "huggingface" }, []string{"HF_ENDPOINT"}},
		"always down": {func(s *hubtest.Server, _ *Hub) { s.Failures = 1000 }, []string{"503"}},
		"always cut":  {func(s *hubtest.Server, _ *Hub) { s.CutPuts = 1000 }, []string{"EOF"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, h, files := pushable(t)
			c.spoil(s, h)
			_, err := h.Push(context.Background(), mine, files, PushOptions{})
			wantLine(t, err, c.want...)
			for _, secret := range []string{"hf_", "signature", "pass"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%q tells %q", err, secret)
				}
			}
			if len(s.Commits) > 0 {
				t.Errorf("there are commits: %+v", s.Commits)
			}
		})
	}
}

// A refusal of the hub's storage is passing: the next push gets new addresses. An error of the network does not say
// that a repository does not exist.
func TestPushPassing(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*hubtest.Server, *Hub)
		want  []string
	}{
		"an expired address": {func(s *hubtest.Server, _ *Hub) { s.RefusePuts = 403 }, []string{"403", "push again"}},
		"storage that fails": {func(s *hubtest.Server, _ *Hub) { s.RefusePuts = 400 }, []string{"400", "push again"}},
		"no answer about the repository": {func(s *hubtest.Server, h *Hub) {
			s.ReadOnly, s.FailGets = true, true
		}, []string{"503"}},
	} {
		s, h, files := pushable(t)
		c.spoil(s, h)
		_, err := h.Push(context.Background(), mine, files, PushOptions{})
		wantLine(t, err, c.want...)
		if !IsPassing(err) || IsAbsent(err) || strings.Contains(err.Error(), "does not exist") {
			t.Errorf("%s: %v is not passing", name, err)
		}
	}
}

// A file that another takes the place of, or that grows, ends a push before its commit.
func TestPushOfWhatChanges(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"replaced": func(path string) error {
			if err := os.WriteFile(path+".new", []byte("{}"), 0o600); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		},
		"longer":  func(path string) error { return os.WriteFile(path, []byte("{ }"), 0o600) },
		"removed": os.Remove,
	} {
		s, h, files := pushable(t)
		at := slices.IndexFunc(files, func(f Upload) bool { return f.Name == "config.json" })
		h.Progress = func(string, int64, int64) { // weights are sent after the configuration was read
			if h.Progress = nil; change(files[at].Path) != nil {
				t.Errorf("%s: the file cannot be changed", name)
			}
		}
		_, err := h.Push(context.Background(), mine, files, PushOptions{})
		wantLine(t, err, "config.json", "changed while it was pushed", "again")
		if !IsPassing(err) || len(s.Commits) > 0 {
			t.Errorf("%s: %v, commits %+v", name, err, s.Commits)
		}
	}
}

// A server that wants weights in the commit itself does not get them: they would all be in memory.
func TestPushOfTooMuchInline(t *testing.T) {
	s, h, _ := pushable(t)
	path := filepath.Join(t.TempDir(), "large.json")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, maxInlineBytes+1)); err != nil {
		t.Fatal(err)
	}
	files, _, err := Uploads(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Push(context.Background(), mine, files, PushOptions{})
	wantLine(t, err, "large.json", "did not answer as a hub does", "64 MiB")
	if len(s.Commits) > 0 {
		t.Errorf("there are commits: %+v", s.Commits)
	}
}

// A link to a model directory is that directory.
func TestUploadsOfALink(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "latest")
	err := errors.Join(os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600), os.Symlink(dir, link))
	if err != nil {
		t.Fatal(err)
	}
	files, _, err := Uploads(link, nil)
	if err != nil || len(files) != 1 || files[0].Name != "config.json" {
		t.Errorf("%+v, %v", files, err)
	}
}

// A file that becomes a link out of the directory while it is pushed is not sent.
func TestPushOfALinkOut(t *testing.T) {
	s, h, files := pushable(t)
	private := filepath.Join(t.TempDir(), "id")
	if err := os.WriteFile(private, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Name == "README.md" {
			if err := errors.Join(os.Remove(f.Path), os.Symlink(private, f.Path)); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err := h.Push(context.Background(), mine, files, PushOptions{})
	wantLine(t, err, "README.md", "out of the directory", "copy")
	if _, _, err = Uploads(filepath.Dir(files[0].Path), nil); err == nil {
		t.Error("the link was listed")
	}
	chosen := func(name string) (bool, error) { return name == "config.json", nil }
	_, leftOut, err := Uploads(filepath.Dir(files[0].Path), chosen)
	if err != nil || !slices.Contains(leftOut, "README.md") || !slices.Contains(leftOut, "additional_chat_templates/") {
		t.Errorf("left out %v, %v", leftOut, err)
	}
	if len(s.Commits) > 0 {
		t.Errorf("there are commits: %+v", s.Commits)
	}
}

func TestPushIgnored(t *testing.T) {
	s, h, files := pushable(t)
	s.Ignore = "README.md"
	done, err := h.Push(context.Background(), mine, files, PushOptions{})
	if err != nil || !slices.Equal(done.Ignored, []string{"README.md"}) || done.Files != 4 {
		t.Errorf("%+v, %v", done, err)
	}
}

func TestPushCancelled(t *testing.T) {
	s, h, files := pushable(t)
	ctx, cancel := context.WithCancel(context.Background())
	h.Progress = func(string, int64, int64) { cancel() }
	if _, err := h.Push(ctx, mine, files, PushOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	s.Lock()
	defer s.Unlock()
	if len(s.Commits) > 0 {
		t.Errorf("there are commits: %+v", s.Commits)
	}
}

func TestUploadsOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.gguf")
	if err := os.WriteFile(path, []byte("GGUF"), 0o600); err != nil {
		t.Fatal(err)
	}
	files, _, err := Uploads(path, nil)
	if err != nil || !slices.Equal(files, []Upload{{Name: "a.gguf", Path: path, Size: 4}}) {
		t.Errorf("%+v, %v", files, err)
	}
	if _, _, err := Uploads(path+".none", nil); err == nil {
		t.Error("a file that does not exist is pushed")
	}
}
