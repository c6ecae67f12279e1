package hub

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
)

func guardOf(t *testing.T, endpoint string) *guard {
	t.Helper()
	g, err := (&Hub{Endpoint: endpoint}).guard()
	if err != nil {
		t.Fatal(err)
	}
	g.networks = &sync.Map{}
	return g
}

// The addresses that a hub names are https if its own is, and in no private network if its own is not.
func TestAddresses(t *testing.T) {
	for _, c := range []struct {
		endpoint, address string
		want              string
	}{
		{"https://hub.example", "https://storage.example/a?sign=1", ""},
		{"https://hub.example", "https://8.8.8.8/a", ""},
		{"https://hub.example", "https://hub.example/verify", ""},
		{"https://hub.example", "http://storage.example/a", "https"},
		{"https://hub.example", "http://hub.example/a", "https"},
		{"https://hub.example", "ftp://storage.example/a", "https"},
		{"https://hub.example", "file:///etc/passwd", "https"},
		{"http://hub.example", "http://storage.example/a", ""},
		{"http://hub.example", "gopher://storage.example/a", "https"},
		{"https://hub.example", "https://127.0.0.1:8443/a", "private"},
		{"https://hub.example", "https://localhost/a", "private"},
		{"https://hub.example", "https://LOCALHOST./a", "private"},
		{"https://hub.example", "https://a.localhost/a", "private"},
		{"https://hub.example", "https://10.1.2.3/a", "private"},
		{"https://hub.example", "https://192.168.0.1/a", "private"},
		{"https://hub.example", "https://169.254.169.254/latest/meta-data", "private"},
		{"https://hub.example", "https://100.64.0.1/a", "private"},
		{"https://hub.example", "https://0.0.0.0/a", "private"},
		{"https://hub.example", "https://[::1]/a", "private"},
		{"https://hub.example", "https://[::ffff:127.0.0.1]/a", "private"},
		{"https://hub.example", "https://[fd00::1]/a", "private"},
		{"https://hub.example", "https://[fe80::1]/a", "private"},
		{"https://hub.example", "https://[64:ff9b::7f00:1]/a", "private"},
		{"https://hub.example", "https://[64:ff9b::a9fe:a9fe]/a", "private"},
		{"https://hub.example", "https://[64:ff9b::808:808]/a", ""},
		{"https://hub.example", "https://[2002:7f00:1::]/a", "private"},
		{"https://hub.example", "https://[2002:c0a8:1::5]/a", "private"},
		{"https://hub.example", "https://[2002:808:808::1]/a", ""},
		{"https://hub.example", "https://[::127.0.0.1]/a", "private"},
		{"https://hub.example", "https://[::8.8.8.8]/a", ""},
		{"https://10.0.0.1", "https://10.0.0.2/a", ""},
		{"http://127.0.0.1:80", "http://127.0.0.1:81/a", ""},
		{"http://localhost:80", "https://storage.example/a", ""},
	} {
		address, err := url.Parse(c.address)
		if err != nil {
			t.Fatal(err)
		}
		err = guardOf(t, c.endpoint).check(address)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s names %s: %v, want %q", c.endpoint, c.address, err, c.want)
		}
	}
}

// A name counts as the address that it has when a connection is made, and that of the endpoint must not change from
// public to private.
func TestConnections(t *testing.T) {
	g := guardOf(t, "https://hub.example")
	for _, c := range []struct {
		server, found string
		good          bool
	}{{"hub.example:443", "8.8.8.8:443", true}, {"storage.example:443", "8.8.4.4:443", true},
		{"storage.example:443", "127.0.0.1:443", false}, {"storage.example:443", "[fd00::1]:443", false},
		{"hub.example:443", "10.0.0.1:443", false}, {"storage.example:443", "10.0.0.1:443", false}} {
		if err := g.connect(c.server, c.found); (err == nil) != c.good {
			t.Errorf("%s at %s: %v", c.server, c.found, err)
		}
	}
	g = guardOf(t, "https://hub.company") // whose storage is in the company's network, too
	for _, c := range [][2]string{{"hub.company:443", "10.0.0.1:443"}, {"storage.company:443", "10.0.0.2:443"},
		{"storage.example:443", "8.8.8.8:443"}} {
		if err := errors.Join(g.connect(c[0], c[1]), g.connected(c[0], c[1])); err != nil {
			t.Errorf("%s at %s: %v", c[0], c[1], err)
		}
	}
}

// A hub with a private address among its own ones is no private hub.
func TestHubOfTwoAddresses(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	// No connection to the address of all is tried on the network; that it is public is all that counts.
	const public, here, noServer = "255.255.255.255", "127.0.0.1", "127.0.0.9"
	server := "hub.example:" + port
	storage := &url.URL{Scheme: "http", Host: here + ":1"}
	for _, c := range []struct {
		addresses            []string
		isMade, isPrivateHub bool
	}{
		{[]string{noServer}, false, false},
		{[]string{public, noServer}, false, false},
		{[]string{noServer, public}, false, false},
		{[]string{here}, true, true},
	} {
		resolve(t, c.addresses)
		g := guardOf(t, "http://"+server)
		ctx := context.WithValue(context.Background(), guardKey{}, g)
		conn, err := dial(ctx, "tcp", server)
		if (err == nil) != c.isMade {
			t.Errorf("%v: %v", c.addresses, err)
		}
		if err == nil {
			conn.Close()
		}
		if err := g.check(storage); (err == nil) != c.isPrivateHub {
			t.Errorf("a hub at %v names %s: %v", c.addresses, storage, err)
		}
		resolve(t, []string{public}) // a private address was no more than a claim
		if conn, err := dial(ctx, "tcp", server); err == nil {
			conn.Close()
		}
		if g.check(storage) == nil {
			t.Errorf("a hub at %v and then at %s names %s", c.addresses, public, storage)
		}
	}
}

// resolve has every name lead to addresses of IPv4: its server of names reads one question, and repeats it in the
// answer.
func resolve(t *testing.T, addresses []string) {
	t.Helper()
	before := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = before })
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, server := net.Pipe()
		go func() {
			defer server.Close()
			frame := make([]byte, 2+512)
			n, err := io.ReadAtLeast(server, frame, 2)
			if length := 2 + int(binary.BigEndian.Uint16(frame)); err == nil && n < length {
				_, err = io.ReadFull(server, frame[n:length])
			}
			if err != nil {
				return
			}
			message := frame[2:]
			end := 12 + bytes.IndexByte(message[12:], 0) + 5 // of the question: the name, its type and its class
			answer := append([]byte(nil), message[:end]...)
			copy(answer[2:], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}) // an answer to one question
			if answer[end-3] == 1 {                                      // type A
				answer[7] = byte(len(addresses))
				for _, address := range addresses {
					answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4) // of that name, for now, 4 bytes
					answer = append(answer, netip.MustParseAddr(address).AsSlice()...)
				}
			}
			_, _ = server.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
		}()
		return ours, nil
	}}
}

// The dialer asks the guard, and the error is no reason to try again.
func TestSteered(t *testing.T) {
	asked := 0
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	t.Cleanup(inside.Close)
	h := &Hub{Endpoint: "http://hub.example", Token: ""}
	_, err := h.get(context.Background(), inside.URL, 0)
	wantLine(t, err, "http://hub.example", "did not answer as a hub does", "private network", "HF_ENDPOINT")
	ctx := context.WithValue(context.Background(), guardKey{}, guardOf(t, h.Endpoint))
	conn, err := dial(ctx, "tcp", strings.TrimPrefix(inside.URL, "http://"))
	var strange *addressError
	if err == nil {
		conn.Close()
	}
	if !errors.As(err, &strange) || asked > 0 {
		t.Errorf("%v, %d requests", err, asked)
	}
}

// A hub that is reached by https cannot lead to http by a redirect.
func TestRedirects(t *testing.T) {
	asked := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	t.Cleanup(other.Close)
	hub := httptest.NewTLSServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	t.Cleanup(hub.Close)
	before := client
	defer func() { client = before }()
	client = hub.Client()
	client.CheckRedirect = checkRedirect
	h := &Hub{Endpoint: hub.URL, Token: "hf_secret"}
	_, err := h.get(context.Background(), hub.URL+"/api/models/a/b", 0)
	wantLine(t, err, hub.URL, "did not answer as a hub does", "not https")
	if IsPassing(err) || asked > 0 {
		t.Errorf("passing: %v, %d requests", IsPassing(err), asked)
	}
}

// The token is sent encrypted, or to this machine.
func TestTokenNeedsEncryption(t *testing.T) {
	for _, endpoint := range []string{"http://hub.example", "http://10.0.0.1:8080"} {
		h := &Hub{Endpoint: endpoint, Token: "hf_secret", Cache: t.TempDir()}
		_, err := h.Open(context.Background(), Repo{Model, "a/b", Main})
		wantLine(t, err, endpoint, "https", "HF_TOKEN")
		if IsPassing(err) || strings.Contains(err.Error(), "hf_secret") {
			t.Errorf("%v", err)
		}
	}
	for _, endpoint := range []string{"http://localhost:80", "http://127.0.0.2", "http://[::1]:80", "http://a.localhost"} {
		if address, err := url.Parse(endpoint); err != nil || !isLoopback(address.Hostname()) {
			t.Errorf("%s is this machine: %v", endpoint, err)
		}
	}
}

// By http the token goes to a private network alone, and only if the user has said so.
func TestTokenOverHTTP(t *testing.T) {
	const secret = "Bearer hf_secret"
	before := client
	defer func() { client = before }()
	client = newClient(0)
	client.Transport.(*http.Transport).Proxy = nil
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get("Authorization"))
	}))
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(server.URL, "http://"))
	get := func(endpoint string, allowed bool) error {
		h := &Hub{Endpoint: endpoint, Token: "hf_secret", TokenOverHTTP: allowed}
		resp, err := h.get(t.Context(), endpoint+"/api", 0)
		if err == nil {
			resp.Body.Close()
		} else if IsPassing(err) {
			t.Errorf("%v is tried again", err)
		}
		return err
	}
	resolve(t, []string{"127.0.0.1"})
	wantLine(t, get("http://hub.company:"+port, false), "is not https", "set MILLRACE_HF_TOKEN_OVER_HTTP=1 if")
	if err := get("http://hub.company:"+port, true); err != nil || len(got) != 1 || got[0] != secret {
		t.Errorf("the hub of a company: %v, it got %q", err, got)
	}
	resolve(t, []string{"255.255.255.255"}) // public; see TestHubOfTwoAddresses
	for _, endpoint := range []string{"http://hub.elsewhere:" + port, "http://8.8.8.8:" + port,
		"http://[2001:db8::1]:" + port} {
		for range 2 {
			wantLine(t, get(endpoint, true), endpoint+" is not https", "in no private network")
		}
	}
	resolve(t, []string{"127.0.0.1"}) // a name that was public once stays that
	wantLine(t, get("http://hub.elsewhere:"+port, true), "in no private network")
	client.Transport.(*http.Transport).Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(server.URL) }
	wantLine(t, get("http://hub.other", true), "proxy", "NO_PROXY")
	if len(got) != 1 {
		t.Errorf("%q was sent", got)
	}
	for value, want := range map[string]bool{"1": true, "": false, "0": false} {
		t.Setenv("MILLRACE_HF_TOKEN_OVER_HTTP", value)
		if FromEnv().TokenOverHTTP != want {
			t.Errorf("%q: %v", value, !want)
		}
	}
}

// Uploads have the headers that storages want signed. One that would make the request another's ends the push.
func TestUploadHeaders(t *testing.T) {
	for name, good := range map[string]bool{"content-type": true, "x-amz-checksum-sha256": true, "x-ms-blob-type": true,
		"X-Goog-Hash": true, "Cookie": false, "authorization": false, "Host": false, "Content-Type-Other": false,
		"X-Forwarded-For": false, "X-aws-ec2-metadata-token": false, "Transfer-Encoding": false, "": false} {
		if isUploadHeader(name) != good {
			t.Errorf("%s: %v", name, !good)
		}
	}
	for _, action := range []map[string]any{
		{"header": map[string]any{"Cookie": "a=b"}},
		{"href": "ftp://127.0.0.1:21/x"},
	} {
		s, h, files := pushable(t)
		sent := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/objects/batch") {
				var asked struct{ Objects []map[string]any }
				_ = json.NewDecoder(r.Body).Decode(&asked)
				upload := map[string]any{"href": s.StorageURL + "/x/whole?signature=1"}
				for key, value := range action {
					upload[key] = value
				}
				asked.Objects[0]["actions"] = map[string]any{"upload": upload}
				_ = json.NewEncoder(w).Encode(map[string]any{"objects": asked.Objects})
				return
			}
			r.URL.Scheme, r.URL.Host, r.RequestURI = "http", strings.TrimPrefix(s.URL, "http://"), ""
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			sent++
			w.WriteHeader(resp.StatusCode)
			var doc any
			if json.NewDecoder(resp.Body).Decode(&doc) == nil {
				_ = json.NewEncoder(w).Encode(doc)
			}
		}))
		h.Endpoint = server.URL
		_, err := h.Push(context.Background(), mine, files, PushOptions{})
		server.Close()
		wantLine(t, err, "did not answer as a hub does")
		if sent == 0 || s.Puts > 0 || len(s.Commits) > 0 {
			t.Errorf("%v: %d requests, %d uploads, commits %+v", action, sent, s.Puts, s.Commits)
		}
	}
}
