package decision

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// spans adds up like stretches of use.
type spans struct{ byKey map[spanKey]*api.UsageSpan }

// spanKey is what like stretches have in common. Times are compared as instants.
type spanKey struct {
	kind     api.SpanKind
	node     string
	from, to int64
}

// add counts one assignment from one time to another. A stretch of no length is no use, nor is what takes nothing that is counted.
// What a resize changed counts from then: the stretch before it was added with the resize.
func (s *spans) add(kind api.SpanKind, a *api.Assignment, from, to time.Time) {
	held := resource.OfAssignment(a)
	if since := a.HeldSince(); since.After(from) {
		from = since
	}
	if !to.After(from) || held.IsZero() {
		return
	}
	key := spanKey{kind, a.Node, from.UnixNano(), to.UnixNano()}
	if s.byKey == nil {
		s.byKey = map[spanKey]*api.UsageSpan{}
	}
	span := s.byKey[key]
	if span == nil {
		span = &api.UsageSpan{Kind: kind, Node: a.Node, From: from, To: to}
		s.byKey[key] = span
	}
	held.AddTo(span)
}

// list is all of it in an order that does not depend on chance.
func (s *spans) list() []api.UsageSpan {
	list := make([]api.UsageSpan, 0, len(s.byKey))
	for _, span := range s.byKey {
		list = append(list, *span)
	}
	slices.SortFunc(list, func(a, b api.UsageSpan) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Node, b.Node), a.From.Compare(b.From), a.To.Compare(b.To))
	})
	return list
}

// EndQuarantine is the use that ends with a quarantine: the rest of the cleaning, from when the cluster let go of it. Its cluster may be
// gone, so it has no number among its records: it is stored under the ID of the assignment.
func EndQuarantine(q api.Quarantine, now time.Time) api.UsageRecord {
	var s spans
	s.add(api.SpanCleaning, &q.Assignment, q.Since, now)
	return api.UsageRecord{
		UID: q.Assignment.ClusterUID, Cluster: q.Assignment.Cluster, Project: projectOf(q.Assignment.Cluster), Spans: s.list(),
	}
}

// projectOf reads the project off a cluster's full name.
func projectOf(cluster string) string {
	if project, _, ok := strings.Cut(cluster, "."); ok {
		return project
	}
	return api.DefaultProject
}
