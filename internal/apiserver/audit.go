package apiserver

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/audit"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// Audit is the site's audit log.
type Audit interface {
	Append(r api.AuditRecord) error
	List(f audit.Filter) ([]api.AuditRecord, error)
	Verify() (api.AuditReport, error)
}

// entry is what becomes the audit record of a request, while that is answered.
type entry struct {
	principal tenancy.Principal
	known     bool // by a token, or by the socket
	access    Access
	code      string
}

// is notes who makes the request.
func (e *entry) is(p tenancy.Principal) { e.principal, e.known = p, true }

type entryKey struct{}

func entryOf(ctx context.Context) *entry {
	e, ok := ctx.Value(entryKey{}).(*entry)
	if !ok {
		return &entry{}
	}
	return e
}

// audited reports whether a request goes into the audit log: one that changes something, reaches into something, shows what administrators only may
// see, or was refused. What agents and strangers may do is in it only when it was refused.
func (e *entry) audited(method string, status int) bool {
	refused := status == http.StatusUnauthorized || status == http.StatusForbidden
	switch {
	case refused:
		return true
	case e.access == AccessRun || e.access == AccessChange || e.access == AccessAdmin || e.access == AccessEnroll:
		return true
	default:
		return e.access == AccessRead && method != http.MethodGet && method != http.MethodHead
	}
}

// Refusals of strangers are recorded one by one up to a rate; beyond that they are counted.
const (
	strangersBurst   = 100
	strangersPerHour = 3600
)

// strangers bounds what people without a token can make the log grow by.
type strangers struct {
	mu      sync.Mutex
	left    float64
	filled  time.Time
	refused int64
}

// record reports whether a stranger's refusal is recorded by itself.
func (s *strangers) record(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.filled.IsZero() {
		s.left = strangersBurst
	} else {
		s.left = min(strangersBurst, s.left+now.Sub(s.filled).Hours()*strangersPerHour)
	}
	s.filled = now
	if s.left < 1 {
		s.refused++
		return false
	}
	s.left--
	return true
}

// counted returns how many refusals were not recorded since it was last called.
func (s *strangers) counted() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.refused
	s.refused = 0
	return n
}

// audit records a request once it is known how it is answered.
func (s *Server) audit(r *http.Request, e *entry, header http.Header, status int) {
	if s.cfg.Audit == nil || !e.audited(r.Method, status) || !e.known && !s.strangers.record(time.Now()) {
		return
	}
	p := e.principal
	record := api.AuditRecord{
		User: p.User, Node: p.Node, Token: p.TokenID, Project: p.Project, Role: p.Role, From: from(r), Action: r.Method + " " + bounded(r.URL.Path), Status: status, Code: e.code,
		Request: header.Get("X-Request-Id"), Object: bounded(header.Get("Location")), Refused: s.strangers.counted(),
	}
	if err := s.cfg.Audit.Append(record); err != nil {
		s.cfg.Log.Error("a request is missing in the audit log", "request", record.Request, "error", err)
	}
}

// bounded keeps a text from making a record too long.
func bounded(text string) string {
	const most = 512
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// from is where a request came from.
func from(r *http.Request) string {
	if r.RemoteAddr == "" || strings.HasPrefix(r.RemoteAddr, "@") || strings.HasPrefix(r.RemoteAddr, "/") {
		return "socket"
	}
	return r.RemoteAddr
}

// addressOf is from without the port.
func addressOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(from(r)); err == nil {
		return host
	}
	return from(r)
}

// auditQuery asks for a page of the audit log.
type auditQuery struct {
	Before int64  `query:"before" minimum:"1" doc:"Only records with a lower number: the lowest of the page before"`
	User   string `query:"user" maxLength:"64" doc:"Only what this user asked for"`
	Failed bool   `query:"failed" doc:"Only what was refused or failed"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"How many records at most"`
}

func (s *Server) listAudit(_ context.Context, in *auditQuery) (*body[api.List[api.AuditRecord]], error) {
	if s.cfg.Audit == nil {
		return &body[api.List[api.AuditRecord]]{api.List[api.AuditRecord]{Items: []api.AuditRecord{}}}, nil
	}
	limit := in.Limit
	if limit == 0 {
		limit = 100
	}
	records, err := s.cfg.Audit.List(audit.Filter{Before: in.Before, User: in.User, Failed: in.Failed, Limit: limit})
	return &body[api.List[api.AuditRecord]]{api.List[api.AuditRecord]{Items: records}}, err
}

func (s *Server) verifyAudit(context.Context, *struct{}) (*body[api.AuditReport], error) {
	if s.cfg.Audit == nil {
		return &body[api.AuditReport]{api.AuditReport{Problems: []string{}}}, nil
	}
	report, err := s.cfg.Audit.Verify()
	return &body[api.AuditReport]{report}, err
}
