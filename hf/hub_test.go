package hf

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const hubCommit = "0123456789abcdef0123456789abcdef01234567"

// fakeHub serves one model, tiny/model, and needs the token "secret".
type fakeHub struct {
	files    map[string][]byte
	cutAfter int // bytes of model.safetensors after which the connection breaks; 0: never
	requests []string
	corrupt  bool
}

func (s *fakeHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests = append(s.requests, r.URL.Path+" "+r.Header.Get("Range"))
	if r.Header.Get("Authorization") != "Bearer secret" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if r.URL.Path == "/api/models/tiny/model/revision/main" {
		var siblings []map[string]any
		for name, data := range s.files {
			blob := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(data)), data...))
			f := map[string]any{"rfilename": name, "size": len(data), "blobId": hex.EncodeToString(blob[:])}
			if strings.HasSuffix(name, ".safetensors") {
				sum := sha256.Sum256(data)
				f["lfs"] = map[string]any{"sha256": hex.EncodeToString(sum[:]), "size": len(data)}
			}
			siblings = append(siblings, f)
		}
		json.NewEncoder(w).Encode(map[string]any{"sha": hubCommit, "siblings": siblings})
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, "/tiny/model/resolve/"+hubCommit+"/")
	data, exists := s.files[name]
	if !ok || !exists {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if s.corrupt {
		data = bytes.Repeat([]byte{'x'}, len(data))
	}
	if name == weightsName && s.cutAfter > 0 {
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		w.Write(data[:s.cutAfter])
		s.cutAfter = 0
		return // the server closes the connection
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

func startHub(t *testing.T) (*fakeHub, string) {
	s := &fakeHub{files: map[string][]byte{
		"config.json": []byte("{}"), "tokenizer.json": []byte(`{"a":1}`), "README.md": []byte("no"), "pytorch_model.bin": []byte("no"),
		weightsName: stFile(`{"a":{"dtype":"F32","shape":[1000],"data_offsets":[0,4000]}}`, 4000),
	}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	home := t.TempDir()
	for k, v := range map[string]string{"HF_HOME": home, "HF_HUB_CACHE": "", "HF_ENDPOINT": server.URL + "/", "HF_TOKEN": "secret", "HF_HUB_OFFLINE": ""} {
		t.Setenv(k, v)
	}
	return s, home
}

func TestResolveDownloads(t *testing.T) {
	s, home := startHub(t)
	s.cutAfter = 1500
	_, err := ResolveModel(context.Background(), "tiny/model", nil)
	wantOneLine(t, err, `"tiny/model"`, weightsName, "unexpected EOF")

	var last int64
	dir, err := ResolveModel(context.Background(), "tiny/model", func(file string, done, total int64) {
		if file == weightsName {
			last = done
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(home, "hub", "models--tiny--model", "snapshots", hubCommit); dir != want {
		t.Errorf("%s, want %s", dir, want)
	}
	if last != int64(len(s.files[weightsName])) {
		t.Errorf("progress ended at %d", last)
	}
	if !strings.Contains(strings.Join(s.requests, "\n"), weightsName+" bytes=1500-") {
		t.Errorf("the download did not go on where it was: %q", s.requests)
	}
	if last := s.requests[len(s.requests)-1]; !strings.Contains(last, weightsName) {
		t.Errorf("the last request is %q, not for the weights", last)
	}
	for name, want := range s.files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if strings.HasPrefix(string(want), "no") {
			if err == nil {
				t.Errorf("%s was downloaded", name)
			}
		} else if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w, err := OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()

	// From now on it is found without the server.
	t.Setenv("HF_HUB_OFFLINE", "1")
	n := len(s.requests)
	for _, id := range []string{"tiny/model", "tiny/model@main", "tiny/model@" + hubCommit} {
		if again, err := ResolveModel(context.Background(), id, nil); err != nil || again != dir {
			t.Errorf("%s: %s, %v", id, again, err)
		}
	}
	if len(s.requests) != n {
		t.Error("a cached model was asked for")
	}
	// A snapshot that lacks a file does not count.
	os.Remove(filepath.Join(dir, weightsName))
	_, err = ResolveModel(context.Background(), "tiny/model", nil)
	wantOneLine(t, err, "HF_HUB_OFFLINE")
}

func TestResolveRefuses(t *testing.T) {
	s, _ := startHub(t)
	local := t.TempDir()
	if dir, err := ResolveModel(context.Background(), local, nil); err != nil || dir != local {
		t.Errorf("%s, %v", dir, err)
	}
	for _, id := range []string{"nothing", "./no/such/dir", "../x/y", "a/../b", "tiny/model@../x", "tiny/model@a/../../x", "", "a/b/c"} {
		_, err := ResolveModel(context.Background(), id, nil)
		wantOneLine(t, err, "no such path", "hub id")
	}
	if len(s.requests) > 0 {
		t.Errorf("requests %q", s.requests)
	}
	_, err := ResolveModel(context.Background(), "other/model", nil)
	wantOneLine(t, err, `"other/model"`, "does not have it")

	t.Setenv("HF_TOKEN", "")
	_, err = ResolveModel(context.Background(), "tiny/model", nil)
	wantOneLine(t, err, "401", "HF_TOKEN")
	t.Setenv("HF_TOKEN", "secret")

	s.corrupt = true
	_, err = ResolveModel(context.Background(), "tiny/model", nil)
	wantOneLine(t, err, "hash", "try again")
	s.corrupt = false
	delete(s.files, weightsName)
	_, err = ResolveModel(context.Background(), "tiny/model", nil)
	wantOneLine(t, err, "no safetensors")

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err = ResolveModel(ctx, "tiny/model", nil); err != context.Canceled {
		t.Errorf("%v", err)
	}
	t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1")
	_, err = ResolveModel(context.Background(), "tiny/model", nil)
	wantOneLine(t, err, "cannot be downloaded", "127.0.0.1:1")
}
