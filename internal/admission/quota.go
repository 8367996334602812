package admission

import (
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// account is a project's account while a plan is made.
type account struct {
	project string
	quota   api.Quota
	// used is what the project holds, with what this plan has admitted.
	used api.Quota
	// withHead is what it will hold with the head besides; nil: the head is not of this project.
	withHead  *api.Quota
	shareUsed float64
	byUser    map[string]float64
}

func (p *planner) accountOf(project string) *account {
	a, ok := p.accounts[project]
	if !ok {
		from := p.in.Accounts[project]
		shares := float64(max(from.Shares, 1))
		a = &account{
			project: project, quota: from.Quota, used: from.Used, shareUsed: from.DecayedCoreSeconds / shares, byUser: from.ByUser,
		}
		p.accounts[project] = a
	}
	return a
}

// wants is what a request adds to what its project holds. A replacement adds nothing: the lost member counts until it is replaced.
func wants(r *Request) api.Quota {
	var q api.Quota
	if r.Kind == KindHeal {
		return q
	}
	for _, g := range r.Groups {
		n := g.Size
		if r.Kind == KindCreate {
			n += g.Spares
		}
		q = add(q, api.Quota{Members: n, Cores: n * g.Cores, Memory: api.Bytes(n) * g.Memory})
	}
	if r.Kind == KindCreate {
		q.Clusters = 1
	}
	return q
}

func add(a, b api.Quota) api.Quota {
	return api.Quota{Cores: a.Cores + b.Cores, Memory: a.Memory + b.Memory, Members: a.Members + b.Members, Clusters: a.Clusters + b.Clusters}
}

// exceeds tells whether any limit is passed that the asker adds to: one who asks for no memory is not kept waiting by memory.
func exceeds(used, wants, quota api.Quota) bool {
	return wants.Members > 0 && quota.Members > 0 && used.Members+wants.Members > quota.Members ||
		wants.Cores > 0 && quota.Cores > 0 && used.Cores+wants.Cores > quota.Cores ||
		wants.Memory > 0 && quota.Memory > 0 && used.Memory+wants.Memory > quota.Memory ||
		wants.Clusters > 0 && quota.Clusters > 0 && used.Clusters+wants.Clusters > quota.Clusters
}

// overText names each limit that is passed; holder is who holds what is used.
func overText(holder string, used, wants, quota api.Quota) string {
	var parts []string
	say := func(wants, used, quota int64, text func(int64) string) {
		switch {
		case wants <= 0 || quota <= 0 || used+wants <= quota:
		case used == 0:
			parts = append(parts, fmt.Sprintf("needs %s, but the quota is %s", text(wants), text(quota)))
		default:
			parts = append(parts, fmt.Sprintf("needs %s, but %s already holds %s and the quota is %s", text(wants), holder, text(used), text(quota)))
		}
	}
	count := func(noun string) func(int64) string {
		return func(n int64) string { return plural(int(n), noun) }
	}
	say(int64(wants.Clusters), int64(used.Clusters), int64(quota.Clusters), count("cluster"))
	say(int64(wants.Members), int64(used.Members), int64(quota.Members), count("member"))
	say(int64(wants.Cores), int64(used.Cores), int64(quota.Cores), count("core"))
	say(int64(wants.Memory), int64(used.Memory), int64(quota.Memory), func(n int64) string { return api.Bytes(n).String() + " of memory" })
	return strings.Join(parts, "; ")
}

// checkQuota tells whether the quota stands against the request, for now or for ever.
func (p *planner) checkQuota(a *ask) cause {
	acc := a.account
	if acc.quota == (api.Quota{}) || !exceeds(acc.used, a.wants, acc.quota) {
		return noCause
	}
	own := api.Quota{}
	if a.request.Kind == KindScale {
		own = p.holds(a.request.Cluster)
	}
	if exceeds(own, a.wants, acc.quota) && a.request.Kind != KindSpare {
		a.over = overText("the cluster", own, a.wants, acc.quota)
		return neverInQuota
	}
	a.over = overText(fmt.Sprintf("project %q", acc.project), acc.used, a.wants, acc.quota)
	return overQuota
}

// holds is what a cluster holds of its project's quota.
func (p *planner) holds(cluster string) api.Quota {
	if p.owned == nil {
		p.owned = map[string]api.Quota{}
		for _, r := range p.in.Running {
			if r.Releasing {
				continue
			}
			for _, id := range r.Assignments {
				if s, ok := p.in.Free.ShareOf(id); ok {
					p.owned[r.Cluster] = add(p.owned[r.Cluster], api.Quota{Members: 1, Cores: s.Cores(), Memory: s.Memory()})
				}
			}
		}
	}
	return p.owned[cluster]
}
