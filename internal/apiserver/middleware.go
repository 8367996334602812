package apiserver

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// session is who makes a request, and whether they still may: streams ask again before every event.
type session struct {
	principal tenancy.Principal
	valid     func() bool
}

type (
	sessionKey   struct{}
	requestIDKey struct{}
)

func withSession(ctx context.Context, s session) context.Context {
	return context.WithValue(ctx, sessionKey{}, s)
}

// sessionOf returns the session of a request; a request without one may do nothing.
func sessionOf(ctx context.Context) session {
	s, ok := ctx.Value(sessionKey{}).(session)
	if !ok {
		return session{valid: func() bool { return false }}
	}
	return s
}

func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// open are the paths that need no token: they tell nothing about clusters.
func open(path string) bool {
	return path == "/healthz" || path == "/readyz" || path == "/openapi.json" || path == "/openapi.yaml"
}

// strangersBody is how long the body of a request may take that has shown no token: the server reads what is announced before it answers, and nobody
// may hold a connection by sending nothing.
const strangersBody = 30 * time.Second

// authenticate lets pass who has a valid bearer token (RFC 6750, section 2.1: in the header only, never in a URL).
func (s *Server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bodyBy := func(deadline time.Time) {
			if r.ContentLength != 0 {
				_ = http.NewResponseController(w).SetReadDeadline(deadline) // a connection without deadlines has none to miss
			}
		}
		bodyBy(time.Now().Add(strangersBody))
		if open(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		if enrolls(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		header := r.Header.Get("Authorization")
		if shown := certificateOf(r); header == "" && shown != nil && s.cfg.Nodes != nil {
			ofNode, f := s.admit(r.Context(), shown)
			if f != nil {
				f.write(w)
				return
			}
			bodyBy(time.Time{})
			entryOf(r.Context()).is(ofNode.principal)
			next.ServeHTTP(w, r.WithContext(withSession(r.Context(), ofNode)))
			return
		}
		scheme, bearer, _ := strings.Cut(header, " ")
		if header == "" || !strings.EqualFold(scheme, "Bearer") {
			fail(codeUnauthorized, "the request carries no bearer token; send the token of this server "+
				"(NEARMETAL_TOKEN_FILE, written to DIR/token by the server)").write(w)
			return
		}
		principal, ok := s.cfg.Tokens.Verify(bearer)
		if !ok && principal.TokenID != "" {
			fail(codeUnauthorized, "token %s of %q ended on %s; an administrator makes another: nearmetal token create", principal.TokenID, principal.User,
				principal.Ends.UTC().Format(time.RFC3339)).write(w)
			return
		}
		if !ok {
			fail(codeUnauthorized, "the token is not known to this server; use the token file that this server wrote (DIR/token)").write(w)
			return
		}
		bodyBy(time.Time{})
		entryOf(r.Context()).is(principal)
		address := addressOf(r)
		s.cfg.Uses.Used(principal.TokenID, address)
		if !principal.Ends.IsZero() {
			w.Header().Set(api.TokenEndsHeader, principal.Ends.UTC().Format(time.RFC3339))
		}
		valid := func() bool {
			p, ok := s.cfg.Tokens.Verify(bearer)
			if ok = ok && p.Equal(principal); ok {
				s.cfg.Uses.Used(principal.TokenID, address)
			}
			return ok
		}
		next.ServeHTTP(w, r.WithContext(withSession(r.Context(), session{principal, valid})))
	})
}

// The paths of agents.
const (
	agentPath       = "/agent/"
	agentStreamPath = agentstream.Path
	agentTunnelPath = agentPath + "v1/tunnel/"
	agentCarryPath  = agentPath + "v1/carry/"
	agentImagesPath = agentPath + "v1/images/"
	agentEnrollPath = agentPath + "v1/enrollment"
	agentRenewPath  = agentPath + "v1/renewal"
)

// enrolls reports whether a path is of those by which nodes get certificates: each looks itself who asks.
func enrolls(path string) bool { return path == agentEnrollPath || path == agentRenewPath }

// route checks the role, and answers by problem details what the mux would answer by plain text.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	principal := who(r.Context())
	access := AccessRead // of what is not there: agents must not find out either
	switch _, pattern := s.mux.Handler(r); {
	case open(r.URL.Path):
		access = AccessOpen
	case pattern != "":
		access = s.access[pattern]
	case enrolls(r.URL.Path):
		access = AccessEnroll
	case strings.HasPrefix(r.URL.Path, agentPath):
		access = AccessAgent
	}
	entryOf(r.Context()).access = access
	if f := allow(principal, access); f != nil {
		f.write(w)
		return
	}
	if _, pattern := s.mux.Handler(r); pattern != "" {
		if known, ok := s.queries[pattern]; ok && !open(r.URL.Path) {
			if f := checkQuery(r.URL.RawQuery, known); f != nil {
				f.write(w)
				return
			}
		}
		s.mux.ServeHTTP(w, r)
		return
	}
	// The mux knows whether the path or only the method is wrong, but says so only by answering.
	answer := headerOnly{}
	s.mux.ServeHTTP(answer, r)
	if allow := http.Header(answer).Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
		fail(codeMethod, "%s can't be done with %s; it has %s", r.URL.Path, r.Method, allow).write(w)
		return
	}
	fail(codeNoPath, "nothing exists at %s; /openapi.json lists the paths", r.URL.Path).write(w)
}

// headerOnly takes an answer of which nothing but the header matters.
type headerOnly http.Header

func (h headerOnly) Header() http.Header       { return http.Header(h) }
func (headerOnly) Write(p []byte) (int, error) { return len(p), nil }
func (headerOnly) WriteHeader(int)             {}

// recorder notes what was answered.
type recorder struct {
	http.ResponseWriter
	entry  *entry
	status int
	bytes  int64
	// answered is called once, before the answer begins to leave.
	answered func(status int)
}

func (r *recorder) begin(status int) {
	if r.status == 0 && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		r.status = status
		r.answered(status)
	}
}

func (r *recorder) WriteHeader(status int) {
	r.begin(status)
	r.ResponseWriter.WriteHeader(status)
}

// Hijack gives the connection away, to become a stream of bytes.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err == nil {
		r.begin(http.StatusSwitchingProtocols)
	}
	return conn, buffered, err
}

func (r *recorder) Write(p []byte) (int, error) {
	r.begin(http.StatusOK)
	n, err := r.ResponseWriter.Write(p)
	r.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach flushing, deadlines and full duplex.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// logged gives every request an ID, logs it when it is done, and survives a panic of its handler.
func (s *Server) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.inFlight.Add(1)
		defer s.inFlight.Add(-1)
		start := time.Now()
		rec := &recorder{ResponseWriter: w, entry: &entry{}}
		rec.answered = func(status int) { s.audit(r, rec.entry, rec.Header(), status) }
		ctx := context.WithValue(context.WithValue(r.Context(), requestIDKey{}, newID(8)), entryKey{}, rec.entry)
		rec.Header().Set("X-Request-Id", requestID(ctx))
		rec.Header().Set("X-Content-Type-Options", "nosniff")
		defer func() {
			if cause := recover(); cause != nil && cause != http.ErrAbortHandler {
				s.cfg.Log.ErrorContext(ctx, "handler panicked", "request", requestID(ctx), "path", r.URL.Path,
					"cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
				if rec.status != 0 {
					panic(http.ErrAbortHandler) // half an answer is out: break the connection, so that it isn't taken for whole
				}
				fail(codeInternal, "the server failed; its log explains why under request %s", requestID(ctx)).write(rec)
			}
			s.logRequest(ctx, r, rec, time.Since(start))
		}()
		next.ServeHTTP(rec, r.WithContext(ctx))
	})
}

// logRequest logs changes and failures of the server for operators, reading for those who debug. No header is logged: one
// of them is the token.
func (s *Server) logRequest(ctx context.Context, r *http.Request, rec *recorder, took time.Duration) {
	level := slog.LevelDebug
	switch {
	case rec.status >= 500:
		level = slog.LevelWarn
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		level = slog.LevelInfo
	}
	s.cfg.Log.Log(ctx, level, "request", "request", requestID(ctx), "method", r.Method, "path", r.URL.Path,
		"status", rec.status, "bytes", rec.bytes, "seconds", took.Seconds(), "remote", r.RemoteAddr)
}
