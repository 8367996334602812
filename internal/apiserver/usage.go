package apiserver

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/tenancy"
	"github.com/nearmetal/nearmetal/internal/usage"
)

const (
	usageDefault = 24 * time.Hour
	// usageRows bounds the periods of one answer.
	usagePeriods = 10_000
)

// usageQuery is what a report of usage is asked for by.
type usageQuery struct {
	from, to time.Time
	period   usage.Period
	by       usage.By
	format   string
	site     bool
}

// usageReport tells who used how much. It is a plain handler: the answer may be comma-separated values.
func (s *Server) usageReport(w http.ResponseWriter, r *http.Request) {
	now, p := s.cfg.Now().UTC(), who(r.Context())
	q, f := usageParameters(r.URL.Query(), now)
	if f != nil {
		f.write(w)
		return
	}
	// A report reads all records of use, which takes seconds at a large site: one after the other, they leave the server to others.
	select {
	case s.reporting <- struct{}{}:
		defer func() { <-s.reporting }()
	case <-r.Context().Done():
		return
	}
	admin := p.Role == api.RoleAdmin
	in := s.usageInput(r.Context(), now, p)
	report, err := usage.Report(in, q.from, q.to, q.period, q.by)
	if errors.Is(err, usage.ErrRecords) {
		s.asFailure(r.Context(), err).write(w)
		return
	}
	if err != nil {
		failFields(codeParameter, api.FieldProblem{Location: "query", Message: err.Error()}).write(w)
		return
	}
	if !admin {
		report.Site = nil
	}
	if report.Rows == nil {
		report.Rows = []api.UsageRow{}
	}
	for i := range report.Rows {
		if row := &report.Rows[i]; row.Cluster != "" {
			row.Cluster = shownName(p, row.Cluster)
		}
	}
	if q.format == "json" {
		writeJSON(w, http.StatusOK, report)
		return
	}
	var text []byte
	if q.site && admin {
		text, err = usage.SiteCSV(report.Site)
	} else {
		text, err = usage.CSV(report.Rows)
	}
	if err != nil {
		s.asFailure(r.Context(), err).write(w)
		return
	}
	w.Header().Set("Content-Type", "text/csv; charset=utf-8; header=present") // RFC 4180, section 3
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(text) // a client that does not take the answer is gone
}

// usageInput is what the use that a principal may see is added up from.
func (s *Server) usageInput(ctx context.Context, now time.Time, p tenancy.Principal) usage.Input {
	in := s.cfg.Reader.UsageInput(ctx, now)
	if p.Role != api.RoleAdmin {
		in.Project = projectOr(p.Project)
	}
	if len(p.Limits.Clusters) > 0 {
		in.Cluster = func(full string) bool { return tenancy.Covers(p, full) }
	}
	if stored := in.Energy; stored != nil && s.cfg.Energy != nil {
		in.Energy = func(from, to time.Time) iter.Seq2[*api.EnergyRecord, error] {
			return usage.WithEnergy(stored(from, to), s.cfg.Energy.Records())
		}
	}
	return in
}

// usageParameters reads the query.
func usageParameters(query url.Values, now time.Time) (usageQuery, *failure) {
	q := usageQuery{to: now}
	var problems []api.FieldProblem
	wrong := func(name, message string) {
		problems = append(problems, api.FieldProblem{Location: "query." + name, Value: query.Get(name), Message: message})
	}
	at := func(name string, into *time.Time) {
		text := query.Get(name)
		if text == "" {
			return
		}
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			if t, err = time.Parse(time.DateOnly, text); err != nil {
				wrong(name, "is not a time; write one such as 2026-01-31T08:00:00Z or 2026-01-31")
				return
			}
		}
		*into = t.UTC()
	}
	at("to", &q.to)
	q.from = q.to.Add(-usageDefault)
	at("from", &q.from)
	if len(problems) == 0 && !q.from.Before(q.to) {
		wrong("from", "is not before the end, "+q.to.Format(time.RFC3339)+"; give an earlier time")
	}
	if q.from.Year() < 1970 || q.to.Year() > 9999 {
		wrong("from", "is out of range")
	}
	// checkQuery has refused words that are not in the document.
	q.period = map[string]usage.Period{"hour": usage.Hour, "day": usage.Day, "week": usage.Week, "month": usage.Month}[query.Get("period")]
	switch query.Get("by") {
	case "cluster":
		q.by = usage.ByCluster
	case "user":
		q.by = usage.ByUser
	case "all":
		q.by = usage.ByAll
	case "site":
		q.by, q.site = usage.ByAll, true
	default:
		q.by = usage.ByProject
	}
	q.format = cmp.Or(query.Get("format"), "json")
	if shortest := map[usage.Period]time.Duration{usage.Hour: time.Hour, usage.Day: 24 * time.Hour}[q.period]; shortest > 0 &&
		q.to.Sub(q.from) > usagePeriods*shortest {
		wrong("period", "makes more rows than one answer holds; ask for a longer period or a shorter time")
	}
	if len(problems) > 0 {
		return q, failFields(codeParameter, problems...)
	}
	return q, nil
}
