package usage

import (
	"cmp"
	"fmt"
	"iter"
	"math/big"
	"math/bits"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// joules is a sum of microjoules that are not negative, exact: a large site uses more in a year than fits into 64 bits.
type joules struct{ whole, micro int64 }

func (j *joules) add(microjoules int64) {
	j.micro += microjoules % 1e6
	j.whole += microjoules/1e6 + j.micro/1e6
	j.micro %= 1e6
}

// round rounds once, to the nearest number there is.
func (j joules) round() float64 {
	sum, _ := new(big.Rat).Add(new(big.Rat).SetInt64(j.whole), big.NewRat(j.micro, 1e6)).Float64()
	return sum
}

// tagged is energy by how it is known.
type tagged struct{ measured, modelled joules }

func (e *tagged) add(a api.EnergyAmount) {
	e.measured.add(a.MeasuredMicrojoules)
	e.modelled.add(a.ModelledMicrojoules)
}

func (e tagged) round() api.EnergyJoules {
	return api.EnergyJoules{MeasuredJoules: e.measured.round(), ModelledJoules: e.modelled.round()}
}

// energyUse is the energy of a row. Times are nanoseconds, which nothing is conserved of.
type energyUse struct {
	amount   tagged
	memberNS float64
}

// siteEnergy is where the site's energy went in a period, exact.
type siteEnergy struct {
	clusters, idle, unattributed tagged
	knownNS, unknownNS           float64
}

// addEnergy counts the energy of clusters, and that of the site.
func (x *exact) addEnergy(in *Input, bounds []int64, by By) error {
	if in.Energy == nil {
		return nil
	}
	begin, end := bounds[0], bounds[len(bounds)-1]
	for r, err := range in.Energy(x.periods[0], x.periods[len(x.periods)-1]) {
		if err != nil {
			return fmt.Errorf("%w: %w", ErrRecords, err)
		}
		first, last := r.From.UnixNano(), r.To.UnixNano()
		if first >= end || last < begin || first == last && first < begin {
			continue
		}
		period := max(0, sort.Search(len(bounds), func(i int) bool { return bounds[i] > first })-1)
		for ; period < len(bounds)-1 && (bounds[period] < last || bounds[period] <= first); period++ {
			x.addPart(in, part{first, last, max(first, bounds[period]), min(last, bounds[period+1])}, period, r, by)
		}
	}
	return nil
}

// addPart counts the part of a record that lies in one period.
func (x *exact) addPart(in *Input, p part, period int, r *api.EnergyRecord, by By) {
	site := &x.energy[period]
	site.idle.add(p.amount(r.Idle))
	site.unattributed.add(p.amount(r.Unattributed))
	site.knownNS += float64(p.of(r.KnownNanoseconds))
	site.unknownNS += float64(p.of(r.UnknownNanoseconds))
	for i := range r.Shares {
		s := &r.Shares[i]
		energy := p.amount(s.EnergyAmount)
		site.clusters.add(energy)
		o := owner{project: orDefault(s.Project), user: s.User, cluster: s.Cluster, uid: s.ClusterUID}
		if !in.counts(&o) {
			continue
		}
		key := rowKey{period: period, owner: o.as(by)}
		row := x.rows[key]
		if row == nil {
			row = &amount{}
			x.rows[key] = row
		}
		if row.energy == nil {
			row.energy = &energyUse{}
		}
		row.energy.amount.add(energy)
		row.energy.memberNS += float64(p.of(s.MemberNanoseconds))
	}
}

// part is the time from one moment to another within that of a record, all in nanoseconds. What a record holds is taken for spread evenly.
type part struct{ first, last, from, to int64 }

// of returns what of a quantity falls into the part. Adjoining parts add up exactly: each is the difference of two roundings down.
func (p part) of(n int64) int64 {
	if p.first == p.last {
		return n
	}
	return p.until(n, p.to) - p.until(n, p.from)
}

func (p part) until(n, at int64) int64 {
	if n < 0 {
		return -p.until(-n, at)
	}
	high, low := bits.Mul64(uint64(n), uint64(at-p.first))
	quotient, _ := bits.Div64(high, low, uint64(p.last-p.first)) // no overflow: at is not after last
	return int64(quotient)
}

func (p part) amount(a api.EnergyAmount) api.EnergyAmount {
	return api.EnergyAmount{MeasuredMicrojoules: p.of(a.MeasuredMicrojoules), ModelledMicrojoules: p.of(a.ModelledMicrojoules)}
}

// rowOf is the energy of a row; nil: nothing is known of it.
func (e *energyUse) rowOf() *api.EnergyUse {
	if e == nil {
		return nil
	}
	return &api.EnergyUse{EnergyJoules: e.amount.round(), KnownMemberSeconds: e.memberNS / 1e9}
}

// rowOf is the site's energy in a period; nil: nothing was reported.
func (e *siteEnergy) rowOf() *api.SiteEnergy {
	if *e == (siteEnergy{}) {
		return nil
	}
	s := api.SiteEnergy{
		Clusters: e.clusters.round(), Idle: e.idle.round(), Unattributed: e.unattributed.round(), KnownNodeSeconds: e.knownNS / 1e9, UnknownNodeSeconds: e.unknownNS / 1e9,
	}
	// Not what was counted, which is the same but for the rounding: readers can check the sum.
	s.Counter = s.Clusters.Plus(s.Idle).Plus(s.Unattributed)
	return &s
}

// EnergyOf adds up records by node, and by cluster and job, from one time to another. Clusters that the input does not count are left out.
func EnergyOf(in Input, from, to time.Time) (nodes map[string]api.NodeEnergy, clusters []api.ClusterEnergy, err error) {
	nodes = map[string]api.NodeEnergy{}
	byJob := map[[2]string]*api.ClusterEnergy{}
	memberNS, unknownNS := map[*api.ClusterEnergy]float64{}, map[string]float64{}
	if in.Energy == nil {
		return nodes, nil, nil
	}
	for r, err := range in.Energy(from, to) {
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrRecords, err)
		}
		p := part{first: r.From.UnixNano(), last: r.To.UnixNano()}
		p.from, p.to = max(p.first, from.UnixNano()), min(p.last, to.UnixNano())
		if p.from > p.to || p.from == p.to && p.first != p.last {
			continue
		}
		n := nodes[r.Node]
		sum := api.EnergyAmount{}
		for i := range r.Shares {
			s := &r.Shares[i]
			energy := p.amount(s.EnergyAmount)
			sum = sum.Plus(energy)
			o := owner{project: orDefault(s.Project), user: s.User, cluster: s.Cluster, uid: s.ClusterUID}
			if !in.counts(&o) {
				continue
			}
			c := byJob[[2]string{s.ClusterUID, s.Job}]
			if c == nil {
				c = &api.ClusterEnergy{Project: o.project, User: o.user, Cluster: o.cluster, UID: o.uid, Job: s.Job}
				byJob[[2]string{s.ClusterUID, s.Job}] = c
			}
			c.EnergyAmount = c.Plus(energy)
			memberNS[c] += float64(p.of(s.MemberNanoseconds))
		}
		if r.KnownNanoseconds > 0 {
			idle, rest := p.amount(r.Idle), p.amount(r.Unattributed)
			n.Counter, n.Clusters = plus(n.Counter, sum.Plus(idle).Plus(rest)), plus(n.Clusters, sum)
			n.Idle, n.Unattributed = plus(n.Idle, idle), plus(n.Unattributed, rest)
		}
		n.Node = r.Node
		nodes[r.Node] = n
		unknownNS[r.Node] += float64(p.of(r.UnknownNanoseconds))
	}
	for name, ns := range unknownNS {
		n := nodes[name]
		n.UnknownNodeSeconds = ns / 1e9
		nodes[name] = n
	}
	for _, c := range byJob {
		c.KnownMemberSeconds = memberNS[c] / 1e9
		clusters = append(clusters, *c)
	}
	slices.SortFunc(clusters, func(a, b api.ClusterEnergy) int {
		return cmp.Or(strings.Compare(a.Project, b.Project), strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.UID, b.UID), strings.Compare(a.Job, b.Job))
	})
	return nodes, clusters, nil
}

func plus(sum *api.EnergyAmount, more api.EnergyAmount) *api.EnergyAmount {
	if sum != nil {
		more = sum.Plus(more)
	}
	return &more
}

// mostMergedShares bounds the shares of a record of several: users can run any number of jobs in a day. Further ones count for their cluster only.
const mostMergedShares = 2000

// MergeEnergy returns the sum of records of one node, in the order of time. Its hour is that of the last.
func MergeEnergy(records []*api.EnergyRecord) api.EnergyRecord {
	sum := *records[0]
	sum.Shares, sum.Mark = nil, nil
	at := map[[2]string]int{}
	for i, r := range records {
		if i > 0 {
			sum.Counter, sum.Idle, sum.Unattributed = sum.Counter.Plus(r.Counter), sum.Idle.Plus(r.Idle), sum.Unattributed.Plus(r.Unattributed)
			sum.KnownNanoseconds, sum.UnknownNanoseconds = sum.KnownNanoseconds+r.KnownNanoseconds, sum.UnknownNanoseconds+r.UnknownNanoseconds
		}
		sum.Hour, sum.To = r.Hour, r.To
		for _, s := range r.Shares {
			key := [2]string{s.ClusterUID, s.Job}
			n, there := at[key]
			if !there && s.Job != "" && len(sum.Shares) >= mostMergedShares {
				s.Job, key[1] = "", ""
				n, there = at[key]
			}
			if !there {
				at[key] = len(sum.Shares)
				sum.Shares = append(sum.Shares, s)
				continue
			}
			known := &sum.Shares[n]
			known.EnergyAmount = known.Plus(s.EnergyAmount)
			known.MemberNanoseconds += s.MemberNanoseconds
		}
	}
	return sum
}

// WithEnergy returns stored records with newer ones in their place: of one node and hour, the one that goes further counts.
func WithEnergy(stored iter.Seq2[*api.EnergyRecord, error], newer []api.EnergyRecord) iter.Seq2[*api.EnergyRecord, error] {
	type key struct {
		node string
		hour int64
	}
	return func(yield func(*api.EnergyRecord, error) bool) {
		left := map[key]*api.EnergyRecord{}
		for i := range newer {
			left[key{newer[i].Node, newer[i].Hour.Unix()}] = &newer[i]
		}
		for r, err := range stored {
			if err == nil {
				k := key{r.Node, r.Hour.Unix()}
				if n := left[k]; n != nil && !n.To.Before(r.To) {
					r = n
				}
				delete(left, k)
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
		for _, r := range left {
			if !yield(r, nil) {
				return
			}
		}
	}
}
