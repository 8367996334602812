package usage

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// owner is whose use a row is of; fields that a report does not tell apart are empty.
type owner struct{ project, user, cluster, uid string }

// stretch is what was held or offered over a time, in nanoseconds since 1970.
type stretch struct {
	from, to int64
	amounts  resource.Amounts
}

// held is an allocated stretch with its owner.
type held struct {
	stretch
	owner *owner
}

// timeline is everything that happened to one node between two times.
type timeline struct {
	allocated []held
	cleaning  []stretch
	up, down  []stretch
}

// errTooMany: more stretches than asked for lie between two times.
var errTooMany = errors.New("too many stretches of use")

// timelines sorts the input by nodes, clipped to a time, and what volumes held beside it. More than limit stretches of records are errTooMany.
func timelines(in *Input, from, to int64, limit int) (map[string]*timeline, []held, error) {
	nodes := map[string]*timeline{}
	var storage []held
	found := 0
	of := func(name string) *timeline {
		if nodes[name] == nil {
			nodes[name] = &timeline{}
		}
		return nodes[name]
	}
	err := in.spans(func(o *owner, s *api.UsageSpan) bool {
		st := stretch{max(s.From.UnixNano(), from), min(s.To.UnixNano(), to), resource.OfSpan(s)}
		if st.from >= st.to {
			return true
		}
		switch s.Kind {
		case api.SpanStorage:
			st.amounts = storageOnly(s)
			storage = append(storage, held{st, o})
		case api.SpanAllocated:
			of(s.Node).allocated = append(of(s.Node).allocated, held{st, o})
		default:
			of(s.Node).cleaning = append(of(s.Node).cleaning, st)
		}
		found++
		return found <= limit
	})
	if err != nil {
		return nil, nil, err
	}
	for s, err := range in.nodeSpans(from) {
		if err != nil {
			return nil, nil, err
		}
		end := to
		if s.To != nil {
			end = min(to, s.To.UnixNano())
		}
		st := stretch{max(s.From.UnixNano(), from), end, resource.OfNodeSpan(s)}
		if st.from >= st.to {
			continue
		}
		n := of(s.Node)
		if s.Down {
			n.down = append(n.down, st)
		} else {
			n.up = append(n.up, st)
		}
		if s.To == nil { // there is one of each node at most
			continue
		}
		if found++; found > limit {
			return nil, nil, errTooMany
		}
	}
	return nodes, storage, nil
}

// nodeSpans yields the spans of nodes that end after a time in nanoseconds since 1970, and perhaps others.
func (in *Input) nodeSpans(from int64) iter.Seq2[*api.NodeSpan, error] {
	return func(yield func(*api.NodeSpan, error) bool) {
		for _, s := range in.Nodes {
			if !yield(s, nil) {
				return
			}
		}
		if in.Former == nil {
			return
		}
		for s, err := range in.Former(time.Unix(0, from)) {
			if err != nil {
				err = fmt.Errorf("%w: %w", ErrRecords, err)
			}
			if !yield(s, err) || err != nil {
				return
			}
		}
	}
}

// spans yields all use, ended or not; what goes on ends now. When it is told to stop, that is errTooMany.
func (in *Input) spans(yield func(*owner, *api.UsageSpan) bool) error {
	for i := range in.Open {
		open := &in.Open[i]
		a := open.Assignment
		s := api.UsageSpan{Kind: api.SpanAllocated, Node: a.Node, From: a.HeldSince(), To: in.Now}
		resource.OfAssignment(a).AddTo(&s)
		if open.ReleasedAt != nil {
			// Its allocated time was written down with its release.
			s.Kind, s.From = api.SpanCleaning, *open.ReleasedAt
		}
		if !yield(&owner{project: orDefault(open.Project), user: open.User, cluster: open.Cluster, uid: open.UID}, &s) {
			return errTooMany
		}
	}
	if !in.storage(yield) {
		return errTooMany
	}
	if in.Records == nil {
		return nil
	}
	for r, err := range in.Records {
		if err != nil {
			return fmt.Errorf("%w: %w", ErrRecords, err)
		}
		o := ownerOf(r)
		for i := range r.Spans {
			if !yield(&o, &r.Spans[i]) {
				return errTooMany
			}
		}
	}
	return nil
}

func orDefault(project string) string {
	if project == "" {
		return api.DefaultProject
	}
	return project
}

// moment is the state of a node at one time.
type moment struct {
	allocated, cleaning resource.Amounts
	up, down            resource.Amounts
}

// edge is a change of a moment.
type edge struct {
	at int64
	// of is which part of the moment changes. By begins to count there, or ends.
	of   func(*moment) *resource.Amounts
	by   *resource.Amounts
	ends bool
}

// edges are all changes in the order of time.
func (n *timeline) edges() []edge {
	all := make([]edge, 0, 2*(len(n.allocated)+len(n.cleaning)+len(n.up)+len(n.down)))
	add := func(s *stretch, of func(*moment) *resource.Amounts) {
		all = append(all, edge{s.from, of, &s.amounts, false}, edge{s.to, of, &s.amounts, true})
	}
	for i := range n.allocated {
		add(&n.allocated[i].stretch, func(m *moment) *resource.Amounts { return &m.allocated })
	}
	for i := range n.cleaning {
		add(&n.cleaning[i], func(m *moment) *resource.Amounts { return &m.cleaning })
	}
	for i := range n.up {
		add(&n.up[i], func(m *moment) *resource.Amounts { return &m.up })
	}
	for i := range n.down {
		add(&n.down[i], func(m *moment) *resource.Amounts { return &m.down })
	}
	slices.SortFunc(all, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	return all
}

// each yields every stretch of time over which nothing about the node changed and that lies within one period.
func (n *timeline) each(bounds []int64, yield func(period int, from, to int64, m *moment)) {
	var m moment
	edges := n.edges()
	period := 0
	for i := 0; i < len(edges); {
		at := edges[i].at
		for ; i < len(edges) && edges[i].at == at; i++ {
			part := edges[i].of(&m)
			if edges[i].ends {
				*part = part.Beyond(*edges[i].by) // it began earlier, so the part has it
			} else {
				*part = part.Plus(*edges[i].by)
			}
		}
		if i == len(edges) {
			return
		}
		for from, to := at, edges[i].at; from < to; {
			for bounds[period+1] <= from {
				period++
			}
			end := min(to, bounds[period+1])
			yield(period, from, end, &m)
			from = end
		}
	}
}

// capacity is what the node offers at a moment: never less than what is held on it, though its agent may have come back with less.
func (m *moment) capacity() (all, used resource.Amounts) {
	used = m.allocated.Plus(m.cleaning)
	return used.Max(m.up.Plus(m.down)), used
}

// width is a time over which a node had so many cores.
type width struct {
	from, to, cores int64
}

func nanoseconds(times []time.Time) []int64 {
	all := make([]int64, len(times))
	for i, t := range times {
		all[i] = t.UnixNano()
	}
	return all
}
