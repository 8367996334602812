package admission

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
)

// ask is a request while it is decided on, and what was decided.
type ask struct {
	request *Request
	index   int
	shapes  []*shape
	account *account
	wants   api.Quota
	// ends is when it gives its room back if it is admitted now; zero: not known.
	ends             time.Time
	rank             int
	share, userShare float64

	verdict Verdict
	placed  []placement.Placed
	spares  []string
	cause   cause
	// over are the quotas it is over, for people.
	over string
	// shadow is when a head can start.
	shadow *shadow
	// head is who it would delay, nil when it is nobody in particular.
	head *ask
}

// cause is why a request is not admitted.
type cause uint8

const (
	noCause       cause = iota
	invalid             // makes no sense on any site
	neverPossible       // the site could not hold it
	overQuota
	neverInQuota
	noRoom      // does not fit now
	noNodes     // does not fit on the nodes at hand, whoever ends
	notTogether // each of its groups would fit, but no way was found to place them all, whoever ends
	ownRoom     // does not fit beside what its own cluster holds, whoever else ends
	delays      // fits, but would delay the head or a replacement
)

// shape is what groups have in common that fit or don't fit alike, but for their size.
type shape struct {
	id    int
	group api.Group
	// capacity is nil before it was counted; countedAt is how many had been admitted then.
	capacity  *placement.Capacity
	countedAt int
}

type shapeKey struct {
	stack                 api.Stack
	environment, selector string
	cores                 int
	memory                api.Bytes
}

// order makes the requests ready to decide on, in their order.
func (p *planner) order() []*ask {
	all := make([]ask, len(p.in.Requests))
	asks := make([]*ask, len(all))
	shapes := map[shapeKey]*shape{}
	for i := range all {
		r := &p.in.Requests[i]
		a := &all[i]
		*a = ask{request: r, index: i, account: p.accountOf(r.Project), wants: wants(r), rank: rankOf(r.Kind)}
		if r.Holds > 0 {
			a.ends = p.in.Now.Add(r.Holds)
		}
		a.share, a.userShare = a.account.shareUsed, a.account.byUser[r.User]
		a.shapes = make([]*shape, len(r.Groups))
		for g := range r.Groups {
			a.shapes[g] = internShape(shapes, &r.Groups[g])
		}
		asks[i] = a
	}
	slices.SortFunc(asks, before)
	return asks
}

func internShape(shapes map[shapeKey]*shape, g *api.Group) *shape {
	key := shapeKey{g.Stack, g.Environment, selectorKey(g.NodeSelector), g.Cores, g.Memory}
	s, ok := shapes[key]
	if !ok {
		s = &shape{id: len(shapes), group: *g}
		shapes[key] = s
	}
	return s
}

func selectorKey(selector map[string]string) string {
	if len(selector) == 0 {
		return ""
	}
	var key strings.Builder
	for _, k := range slices.Sorted(maps.Keys(selector)) {
		key.WriteString(k + "\x00" + selector[k] + "\x01")
	}
	return key.String()
}

func rankOf(k Kind) int {
	switch k {
	case KindHeal:
		return 0
	case KindSpare:
		return 1
	default:
		return 2
	}
}

// before is the order of the queue. Among replacements, and among spares, fair share does not count: who lost first is first.
func before(a, b *ask) int {
	if c := cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(b.request.Priority, a.request.Priority)); c != 0 {
		return c
	}
	if a.rank == rankOf(KindCreate) {
		if c := cmp.Or(cmp.Compare(a.share, b.share), strings.Compare(a.request.Project, b.request.Project),
			cmp.Compare(a.userShare, b.userShare)); c != 0 {
			return c
		}
	}
	return cmp.Or(a.request.Since.Compare(b.request.Since), strings.Compare(a.request.Cluster, b.request.Cluster),
		strings.Compare(string(a.request.Kind), string(b.request.Kind)), cmp.Compare(a.index, b.index))
}
