package hub

import (
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// incomplete is the ending of a blob that is being downloaded.
const incomplete = ".incomplete"

func (s *Snapshot) blob(f File) string { return filepath.Join(s.hub.dir(s.Repo), "blobs", f.Hash) }

// sum computes a file's hash.
func (f File) sum() hash.Hash {
	if len(f.Hash) == 2*sha256.Size {
		return sha256.New()
	}
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", f.Size)
	return h
}

// fetch makes a file appear: its blob is downloaded if the cache lacks it, and linked to.
func (s *Snapshot) fetch(ctx context.Context, f File) error {
	blob := s.blob(f)
	unlock, err := lock(ctx, filepath.Join(s.hub.Cache, ".locks", folder(s.Repo), f.Hash+".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	isThere, err := f.isIn(ctx, blob) // looked at under the lock: another may have been quicker
	if err == nil && !isThere {
		err = s.download(ctx, f, blob)
	}
	if err != nil {
		return err
	}
	link := s.Path(f)
	target, err := filepath.Rel(filepath.Dir(link), blob)
	if err != nil {
		return err
	}
	return linkWhole(link, target)
}

// isIn reports whether a blob that is in the cache, of this program or another, is the file that the hub lists. It is
// read whole: once, since a file that is linked to is not fetched again.
func (f File) isIn(ctx context.Context, blob string) (bool, error) {
	info, err := os.Lstat(blob)
	if err != nil || !info.Mode().IsRegular() || info.Size() != f.Size {
		return false, nil // it is downloaded, or the download says what is wrong
	}
	file, err := os.Open(blob)
	if err != nil {
		return false, err
	}
	defer file.Close()
	sum := f.sum()
	if _, err := copyWhile(ctx, sum, file); err != nil {
		return false, err
	}
	return hex.EncodeToString(sum.Sum(nil)) == f.Hash, nil
}

// copyWhile copies until the end, or until the context ends.
func copyWhile(ctx context.Context, to io.Writer, from io.Reader) (n int64, err error) {
	for err == nil {
		if err = ctx.Err(); err == nil {
			var got int64
			got, err = io.CopyN(to, from, 64<<20)
			n += got
		}
	}
	if err == io.EOF {
		err = nil
	}
	return n, err
}

// errWrongHash is the error of a blob whose contents differ from the listing.
var errWrongHash = errors.New("the downloaded file differs from the file that the hub lists")

// download makes a blob. It writes a file in the same directory, resuming where an earlier attempt ended, and then
// checks, syncs and renames it.
func (s *Snapshot) download(ctx context.Context, f File, blob string) error {
	info, statErr := os.Stat(blob + incomplete)
	err := s.downloadTo(ctx, f, blob)
	if errors.Is(err, errWrongHash) && statErr == nil && info.Size() > 0 {
		// The part of the earlier attempt may be at fault, for instance after a loss of power.
		return s.downloadTo(ctx, f, blob)
	}
	return err
}

func (s *Snapshot) downloadTo(ctx context.Context, f File, blob string) error {
	part, err := openOwn(blob + incomplete)
	if err != nil {
		return err
	}
	defer part.Close()
	t := &transfer{snapshot: s, file: f, part: part, sum: f.sum()}
	if t.have, err = io.Copy(t.sum, io.LimitReader(part, f.Size)); err != nil {
		return err
	}
	if t.have < f.Size {
		err := s.hub.retry(ctx, func() (bool, error) {
			before := t.have
			err := t.attempt(ctx)
			return gotOn(t.have-before, f.Size), err
		})
		if err != nil {
			return err
		}
	}
	if got := hex.EncodeToString(t.sum.Sum(nil)); got != f.Hash {
		os.Remove(part.Name())
		return fmt.Errorf("%w: its hash is %s, not %s: try again", errWrongHash, got, f.Hash)
	}
	if err := part.Truncate(f.Size); err != nil {
		return err
	}
	if err := part.Sync(); err != nil {
		return err
	}
	return os.Rename(part.Name(), blob)
}

// gotOn reports whether an attempt brought enough of a file to be no failure: 1 MiB, or a hundredth. A server that sends a
// byte each time has no more attempts than one that sends nothing.
func gotOn(bytes, size int64) bool { return bytes > 0 && bytes >= min(1<<20, (size+99)/100) }

// transfer is a blob on its way.
type transfer struct {
	snapshot *Snapshot
	file     File
	part     *os.File
	have     int64     // bytes of part that are right if the hash says so in the end
	sum      hash.Hash // of these
}

// attempt sends one request for what is missing.
func (t *transfer) attempt(ctx context.Context) error {
	h, f := t.snapshot.hub, t.file
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	parts := strings.Split(f.Name, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	address := h.address(t.snapshot.Repo) + "/resolve/" + t.snapshot.Commit + "/" + strings.Join(parts, "/")
	resp, err := h.get(ctx, address, t.have)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusPartialContent && t.have > 0:
		// A server that answers with another range would make a blob that has the wrong hash; this says what is wrong.
		if r := resp.Header.Get("Content-Range"); !strings.HasPrefix(r, fmt.Sprintf("bytes %d-", t.have)) {
			return fmt.Errorf("%s sends the range %q, not from byte %d on", h.shownEndpoint(), r, t.have)
		}
	case resp.StatusCode == http.StatusOK: // from the beginning, whatever was asked for
		t.have, t.sum = 0, f.sum()
	default:
		return h.refused(t.snapshot.Repo, resp)
	}
	if _, err := t.part.Seek(t.have, io.SeekStart); err != nil {
		return err
	}
	body := &networkReader{newStallReader(resp.Body, cancel, noData), nil}
	// Never more than is listed, however much comes.
	_, err = io.Copy(t, io.LimitReader(body, f.Size-t.have))
	switch {
	case body.err != nil:
		return fmt.Errorf("%s after %d of %d bytes: %w", h.shownEndpoint(), t.have, f.Size, &cutError{cmp.Or(context.Cause(ctx), body.err)})
	case err != nil:
		return err // of the disk
	case t.have < f.Size:
		return fmt.Errorf("%s after %d of %d bytes: %w", h.shownEndpoint(), t.have, f.Size, &cutError{io.ErrUnexpectedEOF})
	}
	return nil
}

// Write takes bytes that have come.
func (t *transfer) Write(p []byte) (int, error) {
	n, err := t.part.Write(p)
	t.sum.Write(p[:n])
	t.have += int64(n)
	if report := t.snapshot.hub.Progress; report != nil {
		report(t.file.Name, t.have, t.file.Size)
	}
	return n, err
}

// networkReader remembers an error of the connection, to tell it from one of the disk.
type networkReader struct {
	r   io.Reader
	err error
}

func (n *networkReader) Read(p []byte) (int, error) {
	c, err := n.r.Read(p)
	if err != nil && err != io.EOF {
		n.err = err
	}
	return c, err
}
