package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// DefaultAddress is listened on where no other one is asked for.
const DefaultAddress = "127.0.0.1:7077"

// Limits of connections.
const (
	mostConnections = 1024
	maxHeaderBytes  = 16 << 10
	headerTimeout   = 10 * time.Second
	idleTimeout     = 2 * time.Minute
	writeTimeout    = time.Minute
)

// Listen takes an address, HOST:PORT. The error says how to fix it.
func (s *Server) Listen(address string) error {
	host, port, err := splitAddress(address)
	if err != nil {
		return err
	}
	s.address, s.open = net.JoinHostPort(host, port), !isLoopback(strings.ToLower(host))
	l, err := net.Listen("tcp", s.address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s is in use by another program; choose another port, or 0 for a free one: %s", s.address,
			net.JoinHostPort(host, "0"))
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%s is not for this user; choose a port from 1024, such as %s", s.address, DefaultAddress)
	case err != nil:
		return fmt.Errorf("%s cannot be listened on (%w); use an address of this machine, such as %s", s.address, err,
			DefaultAddress)
	}
	s.listener = l
	return nil
}

// splitAddress reads HOST:PORT; an empty one is DefaultAddress.
func splitAddress(address string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(cmp.Or(address, DefaultAddress))
	if err != nil || strings.ContainsAny(address, "/ ") {
		return "", "", fmt.Errorf("%q is not an address; write HOST:PORT, such as %s", address, DefaultAddress)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", "", fmt.Errorf("%q is not a port; use a number from 0 to 65535, as in %s", port, DefaultAddress)
	}
	return host, port, nil
}

// URL returns the address of the page, with the token where the page needs one.
func (s *Server) URL() string {
	host, _, _ := net.SplitHostPort(s.address)
	_, port, _ := net.SplitHostPort(s.listener.Addr().String())
	if host == "" || host == "0.0.0.0" || host == "::" {
		host, _, _ = net.SplitHostPort(DefaultAddress)
	}
	url := "http://" + net.JoinHostPort(host, port) + "/"
	if s.open || s.options.Own != nil {
		url += "#token=" + s.token
	}
	return url
}

// Runs is the number of runs that there are now.
func (s *Server) Runs() int { return len(s.all()) }

// Start follows the runs, and answers requests, until Close.
func (s *Server) Start() {
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.http = &http.Server{Handler: s.guard(s.routes()), MaxHeaderBytes: maxHeaderBytes, ReadHeaderTimeout: headerTimeout,
		ReadTimeout: headerTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ErrorLog: log.New(io.Discard, "", 0), ConnState: limit(mostConnections),
		BaseContext: func(net.Listener) context.Context { return ctx }}
	s.loop.Go(func() { s.follow(ctx) })
	s.loop.Go(func() { _ = s.http.Serve(s.listener) }) // until Close
}

// Close ends all connections, and waits for what the server has started.
func (s *Server) Close() {
	if s.stop == nil {
		if s.listener != nil {
			_ = s.listener.Close() // nothing was served
		}
		return
	}
	s.stop()
	_ = s.http.Close()
	s.loop.Wait()
}

// limit closes connections beyond a number that are open at once.
func limit(most int64) func(net.Conn, http.ConnState) {
	var open atomic.Int64
	return func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if open.Add(1) > most {
				_ = c.Close() // the server finds it closed
			}
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		}
	}
}
