package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// named is how many nodes, labels or environments a message names.
const named = 3

// describe fills in what would fit and the sentence for people.
func (d *diagnosis) describe(r *Refusal) {
	if r.Constraint != ConstraintNodes {
		d.measure(r)
	}
	parts := []string{fmt.Sprintf("cluster %q can't be placed: %s", r.Cluster, needs(r))}
	switch r.Constraint {
	case ConstraintNodes:
		parts = append(parts, "no node has joined this site yet; start an agent on one (nearmetal agent)")
	case ConstraintLabels:
		parts = append(parts, d.aboutLabels(r)...)
	case ConstraintStack:
		parts = append(parts, d.aboutStack(r)...)
	case ConstraintCPUModel:
		parts = append(parts, d.aboutModel(r)...)
	case ConstraintEnvironment:
		parts = append(parts, d.aboutEnvironment(r)...)
	case ConstraintMTU:
		parts = append(parts, d.aboutMTU(r)...)
	case ConstraintFabric:
		parts = append(parts, d.aboutFabric(r)...)
	case ConstraintLocalDisks:
		parts = append(parts, d.aboutLocalDisks(r)...)
	case ConstraintGPUPrograms:
		parts = append(parts, d.aboutGPUPrograms()...)
	case ConstraintVolume:
	default:
		parts = append(parts, d.aboutSpace(r)...)
	}
	parts = append(parts, d.aboutVolumes(r)...)
	r.Message = strings.Join(parts, "; ")
}

// measure finds what would fit.
func (d *diagnosis) measure(r *Refusal) {
	saved := d.level
	d.level = freeNow
	var members []int
	r.FitNodes, members = d.fitting()
	for _, m := range members {
		r.Fits += m
	}
	d.level = saved
	r.Unavailable = d.unavailable()
	// What is cut first is what binds; the other when that does not help.
	for _, byMemory := range []bool{r.Constraint == ConstraintMemory, r.Constraint != ConstraintMemory} {
		if byMemory && r.Need.Memory == 0 {
			continue
		}
		if shape, ok := d.largest(byMemory); ok {
			r.Largest = &shape
			return
		}
	}
}

// needs reports what the group asks for, and what its machines take besides where that matters.
func needs(r *Refusal) string {
	g := r.Need
	text := fmt.Sprintf("group %q needs %s", g.Name, MembersWith(g.Size, g.Shape))
	if g.HugePages > 0 {
		text += fmt.Sprintf(" in huge pages of %s", g.HugePages)
	}
	if rate := resource.OnNode(&g)[resource.Uplink]; rate > 0 && r.Constraint == ConstraintUplink {
		text += fmt.Sprintf(" (whose ports have minimum rates of %s)", api.Rate(rate))
	}
	if reserve := resource.Reserve(&g); reserve > 0 && r.Constraint == ConstraintMemory {
		text += fmt.Sprintf(" (and each machine %s for itself)", api.Bytes(reserve))
	}
	return text
}

// MembersWith says for people what n members of a shape are: "4 members with 8 cores and 16GiB each".
func MembersWith(n int, s api.Shape) string {
	text := resource.Members.Text(int64(n)) + " with " + resource.Cores.Text(int64(s.Cores))
	if s.Memory > 0 {
		text += " and " + s.Memory.String()
	}
	if s.Disk > 0 {
		text += " and a disk of " + s.Disk.String()
	}
	if n > 1 {
		text += " each"
	}
	return text
}

// aboutSpace tells of cores and memory: what fits now, what keeps the rest, what would fit.
func (d *diagnosis) aboutSpace(r *Refusal) []string {
	var parts []string
	switch {
	case r.Constraint == ConstraintTogether:
		parts = append(parts, "each group of the cluster would fit alone, but not all at once", d.fitNow(r))
	case r.Never:
		parts = append(parts, d.fitEmpty(r))
	default:
		parts = append(parts, d.fitNow(r))
		parts = append(parts, d.aboutQuarantine()...)
	}
	parts = append(parts, unavailableText(r.Unavailable)...)
	if !r.Never && isSpace(r.Constraint) {
		parts = append(parts, d.roomiest(r)...)
	}
	if r.Largest != nil {
		text := MembersWith(r.Need.Size, *r.Largest) + " would fit"
		if d.level == everything {
			text += " if every node were up and empty"
		}
		parts = append(parts, text)
	}
	return parts
}

// isSpace reports whether a constraint is an amount that nodes have.
func isSpace(c Constraint) bool {
	return c == ConstraintCores || c == ConstraintMemory || c == ConstraintDisk || c == ConstraintHugePages || c == ConstraintUplink
}

func (d *diagnosis) fitNow(r *Refusal) string {
	when := " now"
	if !d.used.empty() {
		when = " beside the cluster's other groups"
	}
	if r.Fits == 0 {
		return "none fits" + when
	}
	saved := d.level
	d.level = freeNow
	text := d.fitText(when)
	d.level = saved
	return text
}

// fitEmpty reports what the site could hold at all.
func (d *diagnosis) fitEmpty(r *Refusal) string {
	if nodes, _ := d.fitting(); len(nodes) > 0 {
		return "more than this site has: " + d.fitText(" even if every node were up and empty")
	}
	most := largestNode(d.v, d.need())
	what := resource.Cores.Text(int64(most.cores))
	switch r.Constraint {
	case ConstraintMemory:
		what = resource.Memory.Text(most.memory)
	case ConstraintDisk, ConstraintHugePages, ConstraintUplink:
		return d.fitEmptyBesides(r)
	}
	return fmt.Sprintf("more than any node of this site has: the largest, %s, has %s", most.name, what)
}

// fitEmptyBesides tells which node has most of what the group lacks.
func (d *diagnosis) fitEmptyBesides(r *Refusal) string {
	class, name, most := classOf(r.Constraint, &r.Need), "", int64(-1)
	for _, id := range d.v.order {
		if has := d.v.besides[id].offered[class]; d.v.suits(id, r.Need, &suits{}) == "" && has > most {
			name, most = d.v.nodes[id].record.Name, has
		}
	}
	return fmt.Sprintf("more than any node of this site has: %s has most, %s", name, class.Text(most))
}

type nodeSize struct {
	name   string
	cores  int32
	memory int64
}

// largestNode is the largest node that suits the group, by memory when that binds, else by cores.
func largestNode(v *View, g api.Group) nodeSize {
	var most nodeSize
	for _, id := range v.order {
		if v.suits(id, g, &suits{}) != "" {
			continue
		}
		n := nodeSize{v.nodes[id].record.Name, v.cold[id].cores, v.cold[id].memory}
		if most.name == "" || n.cores > most.cores || n.cores == most.cores && n.memory > most.memory {
			most = n
		}
	}
	return most
}

// fitText tells how many members fit, and where.
func (d *diagnosis) fitText(when string) string {
	nodes, members := d.fitting()
	total, single := 0, true
	for _, m := range members {
		total, single = total+m, single && m == 1
	}
	places := make([]string, 0, named)
	for i, n := range nodes {
		if i == named {
			break
		}
		if single {
			places = append(places, n)
		} else {
			places = append(places, fmt.Sprintf("%d on %s", members[i], n))
		}
	}
	where := strings.Join(places, ", ")
	if more := len(nodes) - named; more > 0 {
		where += fmt.Sprintf(" and %s", plural(more, "more node"))
	}
	verb := "fit"
	if total == 1 {
		verb = "fits"
	}
	return fmt.Sprintf("%s %s%s (%s)", resource.Members.Text(int64(total)), verb, when, where)
}

// roomiest tells of the nodes that come nearest but hold no member, in the order of what they have free.
func (d *diagnosis) roomiest(r *Refusal) []string {
	type near struct {
		name string
		free int64
		text string
	}
	var found []near
	for _, id := range d.v.order {
		row, cold := &d.v.rows[id], &d.v.cold[id]
		if !row.state.open(r.Need.Stack) || d.v.suits(id, r.Need, &suits{}) != "" {
			continue
		}
		u := d.used.of(id)
		cores, memory := row.freeCores-u.cores, row.freeMemory-u.memory
		n := near{name: d.v.nodes[id].record.Name}
		free, offered := d.v.availableBesides(id, freeNow).Beyond(u.besides), d.v.besides[id].offered
		if _, lacks := shortBesides(besidesOf(&r.Need), free); !lacks && int(cores) >= r.Need.Cores && memory >= resource.OnNode(&r.Need)[resource.Memory] {
			continue
		}
		switch class := classOf(r.Constraint, &r.Need); class {
		case resource.Memory:
			n.free, n.text = memory, fmt.Sprintf("%s of %s", api.Bytes(max(memory, 0)), api.Bytes(cold.memory))
		case resource.Disk, resource.HugePages2MiB, resource.HugePages1GiB, resource.Uplink:
			if offered[class] == resource.Unmeasured { // it lacks something else
				continue
			}
			n.free, n.text = free[class], fmt.Sprintf("%s of %s", class.Number(free[class]), class.Text(offered[class]))
		default:
			n.free, n.text = int64(cores), fmt.Sprintf("%d of %s", cores, resource.Cores.Text(int64(cold.cores)))
		}
		found = append(found, n)
	}
	slices.SortStableFunc(found, func(a, b near) int { return cmp.Compare(b.free, a.free) })
	var texts []string
	for _, n := range found[:min(len(found), named)] {
		texts = append(texts, fmt.Sprintf("%s has %s free", n.name, n.text))
	}
	if len(texts) == 0 {
		return nil
	}
	text := strings.Join(texts, ", ")
	if more := len(found) - named; more > 0 {
		text += fmt.Sprintf(", %s less", plural(more, "more node"))
	}
	return []string{text}
}

func (d *diagnosis) aboutQuarantine() []string {
	var texts []string
	for _, id := range d.v.order {
		if c := d.v.cold[id]; (c.quarantinedCores > 0 || c.quarantinedMemory > 0) && d.v.suits(id, d.need(), &suits{}) == "" {
			texts = append(texts, fmt.Sprintf("%s and %s of %s", resource.Cores.Text(int64(c.quarantinedCores)),
				api.Bytes(c.quarantinedMemory), d.v.nodes[id].record.Name))
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return []string{shorten(texts) + " are quarantined, not confirmed clean"}
}

// unavailable says of one node, or of several, why they get no new members.
func unavailable(a Availability, nodes int) string {
	return map[Availability][2]string{
		Schedulable: {"is in use, and a whole node is shared with nobody", "are in use, and a whole node is shared with nobody"},
		Unknown:     {"is not reporting", "are not reporting"},
		Asleep:      {"is off", "are off"},
		Warm:        {"waits for a member that gets it whole", "wait for members that get them whole"},
		Down:        {"is down", "are down"},
		Drained:     {"is drained", "are drained"},
		Returning:   {"is being cleaned, inspected or switched off", "are being cleaned, inspected or switched off"},
		Maintenance: {"has maintenance before its members would end", "have maintenance before their members would end"},
		Unencrypted: {"has no WireGuard, and the underlay is encrypted", "have no WireGuard, and the underlay is encrypted"},
	}[a][min(nodes-1, 1)]
}

// unavailableText tells of nodes that get no new members, and why.
func unavailableText(nodes map[Availability][]string) []string {
	var parts []string
	for _, a := range []Availability{Schedulable, Unknown, Asleep, Warm, Returning, Down, Drained, Maintenance, Unencrypted} {
		if names := nodes[a]; len(names) > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", shorten(names), unavailable(a, len(names))))
		}
	}
	return parts
}

func (d *diagnosis) aboutLabels(r *Refusal) []string {
	var wanted []string
	for _, k := range slices.Sorted(maps.Keys(r.Need.NodeSelector)) {
		pair := k + "=" + r.Need.NodeSelector[k]
		wanted = append(wanted, pair)
		have := d.offered(func(n *node) []string {
			if v, ok := n.record.Labels[k]; ok {
				return []string{k + "=" + v}
			}
			return nil
		})
		switch {
		case len(have) == 0:
			return []string{fmt.Sprintf("no node has label %s or any other label %s", pair, k)}
		case !slices.Contains(have, pair):
			return []string{fmt.Sprintf("no node has label %s; nodes have %s", pair, shorten(have))}
		}
	}
	all := strings.Join(wanted, " and ")
	if nodes, _ := d.fitting(); len(nodes) > 0 {
		return []string{"too few nodes have " + all, d.fitText(" even if those were up and empty")}
	}
	if len(d.failing("")) == 0 {
		return []string{"no node has " + all}
	}
	return []string{"the nodes that have " + all + " are too small"}
}

func (d *diagnosis) aboutStack(r *Refusal) []string {
	var texts []string
	for _, n := range d.failing(ConstraintStack) {
		texts = append(texts, n.record.Name+": "+stackProblem(n.record, r.Need.Stack))
	}
	have := d.offered(func(n *node) []string {
		var stacks []string
		for _, s := range n.record.Stacks {
			if s.OK {
				stacks = append(stacks, string(s.Stack))
			}
		}
		return stacks
	})
	parts := d.tooFew(fmt.Sprintf("no node offers stack %q", r.Need.Stack), fmt.Sprintf("too few nodes offer stack %q", r.Need.Stack), texts)
	if len(have) > 0 && !slices.Contains(have, string(r.Need.Stack)) {
		parts = append(parts, "nodes offer "+shorten(have))
	}
	return parts
}

func (d *diagnosis) aboutModel(r *Refusal) []string {
	what := fmt.Sprintf("can carry CPU model %q", r.Need.CPUModel)
	parts := d.tooFew("no node "+what, "too few nodes "+what, nil)
	have := d.offered(func(n *node) []string { return newPlatform(n.record).models })
	switch {
	case len(have) == 0:
		return append(parts, "no node offers a CPU model by name; omit it")
	case !slices.Contains(have, r.Need.CPUModel):
		return append(parts, "nodes can carry "+shorten(have))
	}
	return parts
}

// tooFew reports that no node suits, or too few, with the problems of those that don't, and what the others hold.
func (d *diagnosis) tooFew(none, few string, problems []string) []string {
	because := ""
	if len(problems) > 0 {
		because = " (" + strings.Join(problems[:min(len(problems), named)], "; ")
		if more := len(problems) - named; more > 0 {
			because += fmt.Sprintf("; and %s", plural(more, "more node"))
		}
		because += ")"
	}
	if nodes, _ := d.fitting(); len(nodes) > 0 {
		return []string{few + because, d.fitText(" even if the others were up and empty")}
	}
	return []string{none + because}
}

func stackProblem(rec api.NodeRecord, stack api.Stack) string {
	for _, s := range rec.Stacks {
		if s.Stack == stack && len(s.Problems) > 0 {
			return s.Problems[0]
		}
	}
	return "has no driver for this stack"
}

func (d *diagnosis) aboutEnvironment(r *Refusal) []string {
	var texts []string
	for _, n := range d.failing(ConstraintEnvironment) {
		texts = append(texts, n.record.Name+": "+environmentProblem(n.record, r.Need))
	}
	have := d.offered(func(n *node) []string {
		var names []string
		for _, e := range n.record.Environments {
			if e.OK && slices.Contains(e.Stacks, r.Need.Stack) {
				names = append(names, e.Name)
			}
		}
		return names
	})
	what := fmt.Sprintf("can run environment %q on stack %q", r.Need.Environment, r.Need.Stack)
	parts := d.tooFew("no node "+what, "too few nodes "+what, texts)
	if len(have) > 0 && !slices.Contains(have, r.Need.Environment) {
		parts = append(parts, "nodes have "+shorten(have))
	}
	return parts
}

func environmentProblem(rec api.NodeRecord, g api.Group) string {
	for _, e := range rec.Environments { // another entry of the name may be for other stacks
		if e.Name == g.Environment && slices.Contains(e.Stacks, g.Stack) && len(e.Problems) > 0 {
			return e.Problems[0]
		}
	}
	for _, e := range rec.Environments {
		switch {
		case e.Name != g.Environment:
		case len(e.Problems) > 0:
			return e.Problems[0]
		case !slices.Contains(e.Stacks, g.Stack):
			return fmt.Sprintf("the environment does not run on stack %q", g.Stack)
		}
	}
	return "does not have this environment"
}

// shorten names the first few of a list.
func shorten(items []string) string {
	if len(items) <= named+1 {
		return strings.Join(items, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(items[:named], ", "), len(items)-named)
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
