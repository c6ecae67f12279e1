package hub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A hub answers with addresses: of redirects, of uploads and of what verifies them. It could name servers that this
// machine reaches and the hub does not, such as a router, a database or a cloud's metadata, and have requests sent
// there. So the addresses of others follow two rules. They are https if the endpoint is; and they are not of a private
// network if the endpoint is not. The second is checked for the address that a name has when the connection is made,
// except where a proxy makes it.

// isPrivate reports whether an address is of this machine or of a network that strangers do not reach.
func isPrivate(a netip.Addr) bool {
	a = a.Unmap()
	if a.IsLoopback() || a.IsPrivate() || a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsMulticast() ||
		carrierNAT.Contains(a) {
		return true
	}
	a = a.WithZone("") // which no prefix contains
	for _, t := range translated {
		if t.prefix.Contains(a) {
			b := a.As16()
			return isPrivate(netip.AddrFrom4([4]byte(b[t.at : t.at+4])))
		}
	}
	return false
}

var carrierNAT = netip.MustParsePrefix("100.64.0.0/10")

// translated are the IPv6 addresses that lead to an IPv4 address, which they have from a byte on.
var translated = []struct {
	prefix netip.Prefix
	at     int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12}, // NAT64
	{netip.MustParsePrefix("2002::/16"), 2},     // 6to4
	{netip.MustParsePrefix("::/96"), 12},        // IPv4-compatible
}

// isPrivateHost is isPrivate of a host that is an address or localhost. Other names are looked up when a connection is
// made.
func isPrivateHost(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return isPrivate(a)
	}
	return isLocalName(host)
}

func isLocalName(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// isLoopback reports whether a host is this machine, so that what is sent to it stays here.
func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback() || err != nil && isLocalName(host)
}

// guard is the rule for the requests of one hub.
type guard struct {
	endpoint *url.URL
	// networks says of endpoints whether they are in a private network: those are that had a connection there, and none
	// tried elsewhere. Connections are shared by the hubs of the process, and so is this.
	networks *sync.Map
	// exposed refuses a connection to a public address of the endpoint, for a request that has the token and is not
	// encrypted; nil for other requests.
	exposed *exposedError
}

var networks sync.Map

// guard is the hub's rule; an error says that HF_ENDPOINT is wrong.
func (h *Hub) guard() (*guard, error) {
	own, err := url.Parse(h.Endpoint)
	if err != nil || own.Host == "" || own.Scheme != "https" && own.Scheme != "http" {
		return nil, fmt.Errorf("HF_ENDPOINT %q is not an address: use one such as https://huggingface.co", h.shownEndpoint())
	}
	return &guard{endpoint: own, networks: &networks}, nil
}

// owns reports whether an address is of the endpoint.
func (g *guard) owns(address *url.URL) bool {
	return g.endpoint.Scheme == address.Scheme && g.endpoint.Host == address.Host
}

// check refuses an address that the endpoint has no reason to name.
func (g *guard) check(address *url.URL) error {
	switch {
	case g.owns(address):
		return nil
	case address.Scheme != "https" && (address.Scheme != "http" || g.endpoint.Scheme == "https"):
		return &addressError{address.Scheme + "://" + address.Host, "is not https"}
	case !g.inPrivateNetwork() && isPrivateHost(address.Hostname()):
		return g.steered(address.Host)
	}
	return nil
}

func (g *guard) steered(host string) error {
	return &addressError{host, "is in a private network, where the hub itself is not"}
}

// addressError is why an address is refused. Another try does not help.
type addressError struct{ address, why string }

func (e *addressError) Error() string {
	return fmt.Sprintf("it names the address %.200q, which %s: check HF_ENDPOINT", e.address, e.why)
}

// inPrivateNetwork reports whether the endpoint is in a private network, as far as that is known.
func (g *guard) inPrivateNetwork() bool {
	shown, known := g.networks.Load(hostPort(g.endpoint))
	return known && shown.(bool) || isPrivateHost(g.endpoint.Hostname())
}

// mayBePrivate reports whether the endpoint is in a private network, or has a name of which nothing is known.
func (g *guard) mayBePrivate() bool {
	_, known := g.networks.Load(hostPort(g.endpoint))
	_, err := netip.ParseAddr(g.endpoint.Hostname())
	return g.inPrivateNetwork() || !known && err != nil
}

// hostPort is the address of a server as a dialer gets it.
func hostPort(address *url.URL) string {
	port := address.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[address.Scheme]
	}
	return net.JoinHostPort(address.Hostname(), port)
}

// guardKey is the key of a guard in the context of a request.
type guardKey struct{}

// proxies are the servers that proxies of the environment have; connections to them are the user's wish.
var proxies sync.Map

// proxyOf is http.ProxyFromEnvironment, and remembers what it says.
func proxyOf(req *http.Request) (*url.URL, error) {
	proxy, err := http.ProxyFromEnvironment(req)
	if proxy != nil {
		proxies.Store(hostPort(proxy), true)
	}
	return proxy, err
}

// dial connects to a server, and refuses one in a private network that a public hub has named.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	g, _ := ctx.Value(guardKey{}).(*guard)
	if _, isProxy := proxies.Load(address); g == nil || isProxy {
		return d.DialContext(ctx, network, address)
	}
	d.Control = func(_, found string, _ syscall.RawConn) error { return g.connect(address, found) }
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if err := g.connected(address, conn.RemoteAddr().String()); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// connect is asked before a connection to the server of a name is made, at an address that was found for it. A name can
// have several. One that is tried and is public makes an endpoint public for good; a private one says nothing yet,
// since it may be there for that, and have no server.
func (g *guard) connect(server, found string) error {
	at, err := netip.ParseAddrPort(found)
	if err != nil {
		return &addressError{server, "is at no address that can be checked"}
	}
	isOwn := server == hostPort(g.endpoint)
	if !isPrivate(at.Addr()) {
		if isOwn {
			g.networks.Store(server, false)
			if g.exposed != nil {
				return g.exposed
			}
		}
		return nil
	}
	if _, known := g.networks.Load(server); isOwn && !known || g.inPrivateNetwork() {
		return nil
	}
	return g.steered(server)
}

// connected is asked once a connection is made: an address of the endpoint may have been tried at the same time.
func (g *guard) connected(server, at string) error {
	if err := g.connect(server, at); err != nil {
		return err
	}
	if server == hostPort(g.endpoint) { // a public address is stored
		g.networks.LoadOrStore(server, true)
	}
	return nil
}

// checkRedirect follows redirects as the rule says. The library keeps the token for other ports and for subdomains.
// Large files are with other hosts, whose addresses are signed: these get no token.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("it redirects without end")
	}
	g, _ := req.Context().Value(guardKey{}).(*guard)
	if g == nil {
		return errors.New("it redirects, which was not expected")
	}
	if err := g.check(req.URL); err != nil {
		return err
	}
	if !g.owns(req.URL) {
		req.Header.Del("Authorization")
	}
	return nil
}

// uploadHeaders are the beginnings of what the hub may add to an upload: what storages want signed. A hub does
// not choose cookies, tokens and headers of the connection.
var uploadHeaders = []string{"Content-Type", "X-Amz-", "X-Ms-", "X-Goog-"}

func isUploadHeader(name string) bool {
	name = http.CanonicalHeaderKey(name)
	for _, begin := range uploadHeaders {
		if name == begin || strings.HasSuffix(begin, "-") && strings.HasPrefix(name, begin) {
			return true
		}
	}
	return false
}
