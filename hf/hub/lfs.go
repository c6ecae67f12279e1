package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
)

const lfsType = "application/vnd.git-lfs+json"

// lfsAction is a request that an answer of the batch API asks for. In a multipart upload the header has the size of a
// part as chunk_size, and the address of each part under its number.
type lfsAction struct {
	Href   string         `json:"href"`
	Header map[string]any `json:"header"`
}

// maxParts bounds the parts of an upload; S3 has no more.
const maxParts = 10_000

// upload sends a large file, unless the server has it.
func (p *push) upload(ctx context.Context, f *pushFile) error {
	body, err := json.Marshal(map[string]any{"operation": "upload", "transfers": []string{"basic", "multipart"},
		"hash_algo": "sha256",
		"ref":       map[string]string{"name": p.repo.Revision}, "objects": []map[string]any{{"oid": f.hash,
			"size": f.Size}}})
	if err != nil {
		return err
	}
	var answer struct {
		Objects []struct {
			OID     string               `json:"oid"`
			Actions map[string]lfsAction `json:"actions"`
			Error   *struct {
				Code    int    `json:"code"`
				Message string `json:"message"`
			} `json:"error"`
		} `json:"objects"`
	}
	if err := p.send(ctx, p.hub.address(p.repo)+".git/info/lfs/objects/batch", lfsType, body, &answer); err != nil {
		return err
	}
	if len(answer.Objects) != 1 || answer.Objects[0].OID != f.hash {
		return fmt.Errorf("%s did not answer as a hub does: it was asked for one file and answers for another",
			p.hub.shownEndpoint())
	}
	object := answer.Objects[0]
	for _, action := range object.Actions {
		if to, err := url.Parse(action.Href); err != nil || to.Host == "" {
			return fmt.Errorf("%s did not answer as a hub does: an upload has no address", p.hub.shownEndpoint())
		}
	}
	if object.Error != nil {
		return fmt.Errorf("%s does not take it: %.300q (%d); check what HF_TOKEN may write", p.hub.shownEndpoint(),
			object.Error.Message, object.Error.Code)
	}
	upload, wanted := object.Actions["upload"]
	if !wanted { // the server has it, of an earlier push or of another repository
		p.done.Present++
		p.report(f, f.Size)
		return nil
	}
	if upload.Header["chunk_size"] != nil {
		err = p.sendParts(ctx, f, upload)
	} else {
		_, err = p.sendRange(ctx, f, upload.Href, upload.Header, 0, f.Size)
	}
	if err != nil {
		return err
	}
	p.done.SentBytes += f.Size
	verify, wanted := object.Actions["verify"]
	if !wanted {
		return nil
	}
	if body, err = json.Marshal(map[string]any{"oid": f.hash, "size": f.Size}); err != nil {
		return err
	}
	return p.send(ctx, verify.Href, "application/json", body, nil)
}

// sendParts sends a file in parts, and says when all are there.
func (p *push) sendParts(ctx context.Context, f *pushFile, upload lfsAction) error {
	strange := fmt.Errorf("%s did not answer as a hub does: the parts of an upload are not those of the file",
		p.hub.shownEndpoint())
	size, err := strconv.ParseInt(fmt.Sprint(upload.Header["chunk_size"]), 10, 64)
	if err != nil || size <= 0 || (f.Size-1)/size >= maxParts {
		return strange
	}
	addresses := map[int]string{}
	for key, value := range upload.Header {
		if n, err := strconv.Atoi(key); err == nil {
			addresses[n], _ = value.(string)
		}
	}
	type part struct {
		Number int    `json:"partNumber"`
		ETag   string `json:"etag"`
	}
	var parts []part
	for first := int64(0); first < f.Size; first += size {
		n := len(parts) + 1
		if addresses[n] == "" {
			return strange
		}
		etag, err := p.sendRange(ctx, f, addresses[n], nil, first, min(size, f.Size-first))
		if err != nil {
			return err
		}
		if etag == "" {
			return fmt.Errorf("%s did not answer as a hub does: a part of an upload has no ETag", p.hub.shownEndpoint())
		}
		parts = append(parts, part{n, etag})
	}
	body, err := json.Marshal(map[string]any{"oid": f.hash, "parts": parts})
	if err != nil {
		return err
	}
	return p.send(ctx, upload.Href, lfsType, body, nil)
}

// sendRange sends bytes of a file to a signed address, again if the connection breaks. etag is what the server calls
// them.
func (p *push) sendRange(parent context.Context, f *pushFile, address string, header map[string]any, first,
	bytes int64) (etag string, err error) {
	file, err := f.open()
	if err != nil {
		return "", err
	}
	defer file.Close()
	target, err := url.Parse(address)
	if err != nil || target.Host == "" {
		return "", fmt.Errorf("%s did not answer as a hub does: an upload has no address", p.hub.shownEndpoint())
	}
	err = p.hub.retry(parent, func() (bool, error) {
		ctx, cancel := context.WithCancelCause(parent)
		defer cancel(nil)
		body := newStallReader(&sentReader{io.NewSectionReader(file, first, bytes), p, f, first}, cancel,
			"nothing was sent for a minute")
		defer body.stop()
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, address, io.NopCloser(body))
		if err != nil {
			return false, fmt.Errorf("%s did not answer as a hub does: an upload has no address", p.hub.shownEndpoint())
		}
		req.ContentLength = bytes
		for key, value := range header {
			text, ok := value.(string)
			if ok && !isUploadHeader(key) {
				return false, fmt.Errorf("%s did not answer as a hub does: an upload is to have the header %.100q, which is not "+
					"one of storages: check HF_ENDPOINT", p.hub.shownEndpoint(), key)
			}
			if ok {
				req.Header.Set(key, text)
			}
		}
		resp, err := p.hub.do(req)
		if cause := context.Cause(ctx); err != nil && cause != nil && parent.Err() == nil {
			return false, fmt.Errorf("%s: %w", target.Host, &cutError{cause})
		}
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		if !slices.Contains([]int{http.StatusOK, http.StatusCreated, http.StatusNoContent}, resp.StatusCode) {
			// The address may have expired, or the storage be busy: the request is right.
			return false, &passingError{&refusal{status: resp.StatusCode,
				text: fmt.Sprintf("%s answers %s to an upload: push again, which continues with what is missing",
					target.Host, resp.Status)}}
		}
		etag = resp.Header.Get("ETag")
		return true, nil
	})
	return etag, err
}

// report says how much of a file the server has.
func (p *push) report(f *pushFile, bytes int64) {
	p.reporting.Lock() // a request that was given up may still read its file
	defer p.reporting.Unlock()
	if p.hub.Progress != nil {
		p.hub.Progress(f.Name, bytes, f.Size)
	}
}

// sentReader reports what is read of a file.
type sentReader struct {
	r    io.Reader
	push *push
	file *pushFile
	at   int64
}

func (s *sentReader) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.at += int64(n)
	s.push.report(s.file, s.at)
	return n, err
}
