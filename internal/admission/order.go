package admission

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// ask is a request while it is decided on, and what was decided.
type ask struct {
	request *Request
	index   int
	shapes  []*shape
	account *account
	wants   resource.Amounts
	// ends is when it gives its room back if it is admitted now; zero: not known.
	ends time.Time

	verdict Verdict
	placed  []placement.Placed
	spares  []string
	resized *Resized
	cause   cause
	// over are the quotas it is over, for people.
	over string
	// devices are those of its members; missing says for people which are not there.
	devices [][]placement.DevicesOn
	missing string
	// shadow is when a head can start.
	shadow *shadow
	// home is where a member that goes on finds no room, homeless why that is so. homeUndecided: nodes that are not heard of may have some.
	home          *Home
	homeless      string
	homeUndecided bool
	// lacksDevices: without its devices, it would have room there.
	lacksDevices bool
	// soon: it fits once whole machines are free that come free by themselves, so it waits for them even if it was not to wait for room.
	soon bool
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
	noVolume    // a volume of it has no node yet
	noDevices   // its members would fit, and too few devices are free
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
	memory, disk, pages   api.Bytes
	model                 string
	mtu                   api.PortMTU
	volumes               api.VolumePlace
	interconnect          api.Interconnect
	rates                 int64
	display               bool
	ends                  time.Time
	disks                 string
}

// order makes the requests ready to decide on, in their order.
func (p *planner) order() []*ask {
	all := make([]ask, len(p.in.Requests))
	asks := make([]*ask, len(all))
	shapes := map[shapeKey]*shape{}
	keys := make([]key, len(all))
	for i := range all {
		r := &p.in.Requests[i]
		a := &all[i]
		*a = ask{request: r, index: i, account: p.accountOf(r.Project), wants: wants(r, p.in.Parts)}
		if r.Holds > 0 {
			a.ends = p.in.Now.Add(r.Holds)
		}
		keys[i] = keyOf(a)
		a.shapes = make([]*shape, len(r.Groups))
		for g := range r.Groups {
			a.shapes[g] = internShape(shapes, &r.Groups[g])
		}
	}
	slices.SortFunc(keys, before)
	for i, k := range keys {
		asks[i] = k.ask
	}
	return asks
}

func internShape(shapes map[shapeKey]*shape, g *api.Group) *shape {
	key := shapeKey{
		g.Stack, g.Environment, selectorKey(g.NodeSelector), g.Cores, g.Memory, g.Disk, g.HugePages, g.CPUModel, g.PortMTU, g.VolumePlace, g.Interconnect,
		resource.OnNode(g)[resource.Uplink], g.Display, g.Ends, disksKey(g.LocalDisks),
	}
	s, ok := shapes[key]
	if !ok {
		s = &shape{id: len(shapes), group: *g}
		shapes[key] = s
	}
	return s
}

func disksKey(requests []api.DiskRequest) string {
	key := ""
	for _, r := range requests {
		key += string(r) + " "
	}
	return key
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

// key is what the order goes by.
type key struct {
	rank, priority   int32
	share, userShare float64
	since            int64
	ask              *ask
}

// The ranks of kinds.
const (
	rankHeal int32 = iota
	rankRestore
	rankMove
	rankResize
	rankSpare
	rankQueue
)

func keyOf(a *ask) key {
	r := a.request
	k := key{priority: int32(r.Priority), since: r.Since.UnixNano(), ask: a}
	switch r.Kind {
	case KindHeal:
		k.rank = rankHeal
	case KindRestore:
		k.rank = rankRestore
	case KindMove:
		k.rank = rankMove
	case KindResize:
		k.rank = rankResize
	case KindSpare:
		k.rank = rankSpare
	default:
		k.rank, k.share, k.userShare = rankQueue, a.account.shareUsed, a.account.byUser[r.User]
	}
	return k
}

// before is the order of the queue. Fair share does not count among replacements, nor among spares: who lost first is first.
func before(a, b key) int {
	if c := cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(b.priority, a.priority), cmp.Compare(a.share, b.share),
		cmp.Compare(a.userShare, b.userShare)); c != 0 {
		return c
	}
	ra, rb := a.ask.request, b.ask.request
	return cmp.Or(cmp.Compare(a.since, b.since), strings.Compare(ra.Cluster, rb.Cluster), strings.Compare(string(ra.Kind), string(rb.Kind)),
		cmp.Compare(a.ask.index, b.ask.index))
}

// queued tells whether the request stands in the queue: replacements, restores, moves, resizes and spares do not.
func (a *ask) queued() bool { return a.request.Kind == KindCreate || a.request.Kind == KindScale }
