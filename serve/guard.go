package serve

import (
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/fault"
)

// The page asks for nothing from elsewhere, and no other page may ask this server for anything or show it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// TokenHeader has the token of a request. Prometheus sends it as `Authorization: Bearer TOKEN`.
const TokenHeader = "X-Millrace-Token"

// guard answers requests that must not reach the routes, and sets the headers of all answers. It refuses, in order:
// names of this machine that are not its own, as those that a page of another site has made point to it (DNS
// rebinding); what another site asks for; what needs the token and comes without it.
func (s *Server) guard(routes http.Handler) http.Handler {
	origins := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		defer s.recover(w)
		s.asked.Store(time.Now().UnixNano())
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case !s.isOwnName(q.Host):
			fail(w, http.StatusForbidden, "the Host of the request is not a name of this server: open it as the line that "+
				"it printed at its start says, or start it with --address NAME:PORT")
			return
		case q.Method != http.MethodGet && q.Method != http.MethodHead && q.Method != http.MethodPost:
			h.Set("Allow", "GET, HEAD, POST")
			fail(w, http.StatusMethodNotAllowed, "the method is not GET, HEAD or POST")
			return
		case origins.Check(q) != nil:
			fail(w, http.StatusForbidden, "another site asks for it: use the page of this server")
			return
		case q.Method == http.MethodPost || s.open && isData(q.URL.Path):
			if !s.hasToken(q) {
				fail(w, http.StatusUnauthorized, "the token is missing or wrong: send that of the server's first line in "+
					"the header "+TokenHeader)
				return
			}
		}
		if q.ContentLength != 0 {
			fail(w, http.StatusBadRequest, "the request has a body: send it without one")
			return
		}
		routes.ServeHTTP(w, q)
	})
}

// isData reports whether a path leads to numbers of runs, and not to a file of the page.
func isData(path string) bool {
	return path == "/metrics" || strings.HasPrefix(path, "/api/") || path == "/api"
}

// hasToken reports whether a request has the token.
func (s *Server) hasToken(q *http.Request) bool {
	token := q.Header.Get(TokenHeader)
	if bearer, ok := strings.CutPrefix(q.Header.Get("Authorization"), "Bearer "); token == "" && ok {
		token = bearer
	}
	return subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) == 1
}

// isOwnName reports whether the Host of a request is a name by which this server is known: a loopback one, as a tunnel
// of ssh has too, or that of the address that was asked for. Where that is each address of the machine, a number is
// one, which no other site can give a name to, and so is the name of the machine.
func (s *Server) isOwnName(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"), "."))
	if isLoopback(name) {
		return true
	}
	asked, _, _ := net.SplitHostPort(s.address)
	if !s.open {
		return false
	}
	if ip, err := netip.ParseAddr(asked); asked != "" && (err != nil || !ip.IsUnspecified()) {
		return strings.EqualFold(name, asked)
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	own, err := os.Hostname()
	own = strings.ToLower(own)
	return err == nil && name != "" && (name == own || strings.HasPrefix(name, own+"."))
}

// isLoopback reports whether a name or number is this machine and reached from it alone.
func isLoopback(name string) bool {
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.IsLoopback()
}

// recover keeps a fault of a request from ending the program, which may be a run of a week, and tells of it.
func (s *Server) recover(w http.ResponseWriter) {
	p := recover()
	if p == nil || p == http.ErrAbortHandler {
		return
	}
	if s.faults.Add(1) == 1 && s.options.Warn != nil {
		var text strings.Builder
		fault.Report(&text, p)
		s.options.Warn(fmt.Sprintf("the page has failed to answer a request; the run continues. %s", text.String()))
	}
	fail(w, http.StatusInternalServerError, "a fault of the program; its first one is in the program's output")
}
