package manifest

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Defaults of a group.
const (
	DefaultSize        = 1
	DefaultCores       = 1
	DefaultMemory      = api.Bytes(512 << 20)
	DefaultStack       = api.StackContainer
	DefaultEnvironment = "local"
)

// Limits of a request. What really exists is placement's business; these keep sums from overflowing and names in shape.
const (
	// MaxMembers is how many members fit a cluster's subnet, a /20 without network, gateway and broadcast address.
	MaxMembers = 4093
	MinMemory  = api.Bytes(16 << 20)
	// MinVMMemory is for a kernel, too, and for what is written to the root.
	MinVMMemory = api.Bytes(192 << 20)
	maxMemory   = api.Bytes(1 << 50)
	MaxCores    = 1 << 16
	MaxGroups   = 256
	MaxLabels   = 64

	// MaxNetworkName bounds the name of a further network within its cluster.
	MaxNetworkName = 32
	// MaxGroupNetworks and MaxClusterNetworks count further networks: each of their ports is a link on a node, and each network one there.
	MaxGroupNetworks   = 7
	MaxClusterNetworks = 15

	// MaxSecurityGroupName bounds the name of a security group within its project.
	MaxSecurityGroupName = 32
	// MaxPortGroups is how many security groups a port may have: each lengthens the way of its packets.
	MaxPortGroups = 8
	// MaxGroupRules is how many rules a security group may have: nodes hold them for each network with such ports.
	MaxGroupRules = 1000
	// MaxRule bounds the text of a rule.
	MaxRule = 128

	minTimeLimit = api.Duration(time.Second)
	maxTimeLimit = api.Duration(3650 * 24 * time.Hour)
	MaxPriority  = 1000
)

// stacks are the known ones.
var stacks = []string{string(api.StackMetal), string(api.StackVM), string(api.StackContainer)}

// Cluster is a request in its normal form.
type Cluster struct {
	Name string
	// Project is empty when the request names none.
	Project string `json:",omitempty"`
	Labels  map[string]string
	Spec    api.ClusterSpec
}

// Normalize checks a request, fills in every default and lists the groups. The error is an *Invalid that names every problem.
//
// Member names can't collide: they are GROUP-NUMBER, group names are unique, and the number holds no '-'.
func Normalize(req api.ClusterRequest, src *Source) (Cluster, error) {
	n := normalizer{src: src}
	n.label("name", req.Name, MaxClusterName)
	n.labels("labels", req.Labels)
	c := Cluster{Name: req.Name, Project: req.Project, Labels: req.Labels, Spec: api.ClusterSpec{
		Technology: req.Technology, Cell: req.Cell, Egress: req.Egress, TimeLimit: req.TimeLimit, Priority: req.Priority, Queue: req.Queue,
	}}
	if req.Project != "" || src.Has("project") {
		n.label("project", req.Project, MaxProjectName)
	}
	n.span("time_limit", &c.Spec.TimeLimit, 0, minTimeLimit, maxTimeLimit)
	n.between("priority", req.Priority, -MaxPriority, MaxPriority)
	pathOf := func(int) string { return "" }
	if len(req.Groups) == 0 && !src.Has("groups") {
		c.Spec.Groups = []api.Group{n.group("", shortForm(req), req.Name)}
	} else {
		n.bothForms(req)
		c.Spec.Groups = n.groups(req)
		pathOf = func(i int) string { return fmt.Sprintf("groups[%d]", i) }
	}
	n.storage(req, &c.Spec, pathOf)
	n.datasetsApart(&c.Spec)
	n.ownNetwork(&c.Spec, pathOf)
	for i := range c.Spec.Groups {
		n.interfaces(join(pathOf(i), "networks"), &c.Spec, c.Spec.Groups[i])
	}
	n.total(c.Spec.Groups)
	n.allNetworks(c.Spec.Groups)
	n.allAddresses(c.Spec.Groups)
	n.allUserData(c.Spec.Groups)
	if len(n.problems) > 0 {
		sort.SliceStable(n.problems, func(i, j int) bool { return n.problems[i].Line < n.problems[j].Line })
		return c, &Invalid{Problems: n.problems}
	}
	return c, nil
}

// shortForm is the one group that stands at the top of a request.
func shortForm(req api.ClusterRequest) api.Group {
	return api.Group{
		Name: req.Name, Size: req.Size, ShapeName: req.ShapeName, Shape: api.Shape{Cores: req.Cores, Memory: req.Memory, Disk: req.Disk},
		Stack: req.Stack, Environment: req.Environment, NodeSelector: req.NodeSelector, Spares: req.Spares, Interface: req.Interface, Adapter: req.Adapter, Standby: req.Standby, Networks: req.Networks,
		ShareMemory: req.ShareMemory, Display: req.Display, CPUModel: req.CPUModel, HugePages: req.HugePages, UserData: req.UserData, Checks: req.Checks,
		Interconnect: req.Interconnect, GPU: req.GPU, LocalDisks: req.LocalDisks, Datasets: req.Datasets, Reads: req.Reads,
	}
}

type normalizer struct {
	src      *Source
	problems []api.FieldProblem
}

func (n *normalizer) add(path, value, format string, args ...any) {
	n.problems = append(n.problems, api.FieldProblem{
		Location: path, Line: n.src.Line(path), Value: value, Message: fmt.Sprintf(format, args...),
	})
}

// bothForms refuses fields of the short form beside groups.
func (n *normalizer) bothForms(req api.ClusterRequest) {
	given := map[string]bool{
		"size": req.Size != 0, "shape": req.ShapeName != "", "cores": req.Cores != 0, "memory": req.Memory != 0, "stack": req.Stack != "",
		"environment": req.Environment != "", "node_selector": len(req.NodeSelector) > 0, "spares": req.Spares != 0,
		"interface": req.Interface != "", "adapter": req.Adapter != (api.DeviceChoice{}), "standby": req.Standby, "networks": len(req.Networks) > 0, "share_memory": req.ShareMemory != nil, "display": req.Display, "cpu_model": req.CPUModel != "", "checks": len(req.Checks) > 0,
		"disk": req.Disk != 0, "huge_pages": req.HugePages != 0, "user_data": req.UserData != "",
		"interconnect": req.Interconnect != (api.Interconnect{}), "gpu": req.GPU != "", "local_disks": len(req.LocalDisks) > 0, "datasets": len(req.Datasets) > 0, "reads": req.Reads != 0,
	}
	for _, path := range []string{"size", "shape", "cores", "memory", "stack", "environment", "node_selector", "spares", "interface", "adapter", "standby", "networks", "share_memory", "display", "cpu_model", "checks", "disk", "huge_pages", "user_data", "interconnect", "gpu", "local_disks", "datasets", "reads"} {
		if given[path] || n.src.Has(path) {
			n.add(path, "", "conflicts with groups; move it into a group, or omit groups")
		}
	}
}

func (n *normalizer) groups(req api.ClusterRequest) []api.Group {
	if len(req.Groups) == 0 {
		n.add("groups", "", "is an empty list; name at least one group, or omit the list")
		return nil
	}
	if len(req.Groups) > MaxGroups {
		n.add("groups", strconv.Itoa(len(req.Groups)), "has %d groups; at most %d are possible", len(req.Groups), MaxGroups)
		return nil
	}
	var groups []api.Group
	first := map[string]int{}
	for i, g := range req.Groups {
		path := fmt.Sprintf("groups[%d]", i)
		if g.Name == "" && len(req.Groups) == 1 && !n.src.Has(path+".name") {
			g.Name = req.Name
		} else {
			n.groupName(path, g.Name)
		}
		if j, ok := first[g.Name]; ok && g.Name != "" {
			n.add(path+".name", g.Name, "%q is also the name of groups[%d]; give every group its own name", g.Name, j)
		} else {
			first[g.Name] = i
		}
		groups = append(groups, n.group(path, g, g.Name))
	}
	return groups
}

// groupName checks the name of one of several groups, which has no default.
func (n *normalizer) groupName(path, name string) {
	at := path + ".name"
	if name == "" && !n.src.Has(at) {
		n.problems = append(n.problems, api.FieldProblem{
			Location: at, Line: n.src.Line(path), Message: "is missing; with several groups, every group needs a name",
		})
		return
	}
	n.label(at, name, MaxLabel-len("-")-len(strconv.Itoa(MaxMembers)))
}

// group checks one group and fills in its defaults; path is "" for the short form.
func (n *normalizer) group(path string, g api.Group, name string) api.Group {
	g.Name = name
	n.atLeast(join(path, "size"), &g.Size, DefaultSize, MaxMembers, "member")
	if at := join(path, "shape"); g.ShapeName != "" || n.src.Has(at) {
		n.label(at, g.ShapeName, MaxLabel)
	}
	n.atLeast(join(path, "cores"), &g.Cores, DefaultCores, MaxCores, "core per member")
	least := MinMemory
	if g.Stack == api.StackVM {
		least = MinVMMemory
	}
	n.memory(join(path, "memory"), &g.Memory, least)
	at := join(path, "stack")
	if g.Stack == "" && !n.src.Has(at) {
		g.Stack = DefaultStack
	} else if !slices.Contains(stacks, string(g.Stack)) {
		n.add(at, string(g.Stack), "%q is not a stack; %s", g.Stack, oneOf(string(g.Stack), stacks))
	}
	at = join(path, "environment")
	if g.Environment == "" && !n.src.Has(at) {
		g.Environment = DefaultEnvironment
	} else {
		n.label(at, g.Environment, MaxLabel)
	}
	n.labels(join(path, "node_selector"), g.NodeSelector)
	n.between(join(path, "spares"), g.Spares, 0, MaxMembers)
	n.networks(join(path, "networks"), g.Networks)
	n.addresses(join(path, "networks"), g)
	n.adapter(join(path, "adapter"), g.Interface, g.Adapter)
	g.Interface = n.ownInterface(join(path, "interface"), g)
	n.standby(path, g.OwnNetwork(), g)
	if g.ShareMemory != nil && *g.ShareMemory && g.Stack != api.StackContainer {
		n.add(join(path, "share_memory"), "true", "members on the stack %q can't share memory; omit it, or use the stack %q", g.Stack, api.StackContainer)
	}
	if g.Display && g.Stack != api.StackVM {
		n.add(join(path, "display"), "true", "members on the stack %q have no display; omit it, or use the stack %q", g.Stack, api.StackVM)
	}
	g.CPUModel = n.cpuModel(join(path, "cpu_model"), g)
	g.Interconnect = n.interconnect(join(path, "interconnect"), g.Interconnect)
	n.disk(join(path, "disk"), g)
	n.hugePages(path, g)
	n.userData(join(path, "user_data"), g)
	g.Devices = n.devices(join(path, "devices"), g)
	g = n.gpu(join(path, "gpu"), g)
	n.localDisks(join(path, "local_disks"), g)
	g.Datasets = n.datasets(join(path, "datasets"), g)
	g.Datasets, g.Reads = n.reads(join(path, "reads"), g), 0
	g.Checks = n.checks(join(path, "checks"), g.Checks)
	return g
}

// atLeast fills in the default of a count that was not given and refuses one below 1 or above most.
func (n *normalizer) atLeast(path string, count *int, fallback, most int, what string) {
	switch {
	case *count == 0 && !n.src.Has(path):
		*count = fallback
	case *count < 1:
		n.add(path, strconv.Itoa(*count), "%d is too small; give at least 1 %s", *count, what)
	case *count > most:
		n.add(path, strconv.Itoa(*count), "%d is too large; the limit is %d", *count, most)
	}
}

func (n *normalizer) memory(path string, m *api.Bytes, least api.Bytes) {
	switch {
	case *m == 0 && !n.src.Has(path):
		*m = DefaultMemory
	case *m < least:
		n.add(path, m.String(), "%s is too small; give at least %s per member", *m, least)
	case *m > maxMemory:
		n.add(path, m.String(), "%s is too large; the limit is %s", *m, maxMemory)
	}
}

func (n *normalizer) label(path, name string, maxLength int) {
	if name == "" && !n.src.Has(path) {
		n.add(path, "", "is missing; give a name of lower-case letters, digits and '-'")
		return
	}
	if problem := LabelProblem(name, maxLength); problem != "" {
		n.add(path, name, "%q %s", name, problem)
	}
}

func (n *normalizer) labels(path string, labels map[string]string) {
	if len(labels) > MaxLabels {
		n.add(path, strconv.Itoa(len(labels)), "has %d entries; at most %d are possible", len(labels), MaxLabels)
		return
	}
	keys := make([]string, 0, len(labels))
	for k := range labels {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if problem := KeyProblem(k); problem != "" {
			n.add(join(path, k), k, "%q %s", k, problem)
		}
		if problem := ValueProblem(labels[k]); problem != "" {
			n.add(join(path, k), labels[k], "%q %s", labels[k], problem)
		}
	}
}

// total refuses more members than a cluster's network holds, and spares whose names could be those of members.
func (n *normalizer) total(groups []api.Group) {
	sum, spares := 0, 0
	for _, g := range groups {
		if g.Size > MaxMembers || g.Spares > MaxMembers {
			return // said already
		}
		sum, spares = sum+max(g.Size, 0), spares+max(g.Spares, 0)
	}
	switch {
	case spares == 0 && len(groups) < 2: // a single group's size has been checked
	case sum > MaxMembers:
		n.add("groups", strconv.Itoa(sum), "request %d members in all; a cluster's network holds %d", sum, MaxMembers)
	case sum+spares > MaxMembers:
		n.add("groups", strconv.Itoa(sum+spares), "request %d members and %d spares; a cluster's network holds %d in all", sum, spares, MaxMembers)
	}
	for i, g := range groups {
		taken := func(other api.Group) bool { return g.Spares > 0 && other.Name == g.Name+spareSuffix }
		if j := slices.IndexFunc(groups, taken); j >= 0 {
			n.add(fmt.Sprintf("groups[%d].name", j), groups[j].Name, "%q is the name of the spares of groups[%d]; give the group another name",
				groups[j].Name, i)
		}
	}
}

// oneOf lists what is possible, the closest first when one is close.
func oneOf(typed string, names []string) string {
	if s := Closest(typed, names); s != "" {
		return fmt.Sprintf("did you mean %q?", s)
	}
	return "use " + strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// CheckTimeLimit refuses a time limit that no cluster can be given. The error is an *Invalid.
func CheckTimeLimit(limit api.Duration, src *Source) error {
	n := normalizer{src: src}
	const path = "time_limit"
	switch {
	case limit == 0 && !src.Has(path):
		n.add(path, "", "is missing; give a time span like 90s, 30m, 4h or 2d")
	case limit < minTimeLimit:
		n.add(path, limit.String(), "%s is too short; give at least %s", limit, minTimeLimit)
	case limit > maxTimeLimit:
		n.add(path, limit.String(), "%s is too long; the limit is %s", limit, maxTimeLimit)
	}
	return n.err()
}

// CheckLabels refuses labels that no cluster can have: those given, and all that there would be then. The error is an *Invalid.
func CheckLabels(given, all map[string]string, src *Source) error {
	n := normalizer{src: src}
	if len(given) == 0 {
		n.add("labels", "", "is missing; give the labels to set; an empty value removes a label")
	}
	n.labels("labels", given)
	if len(all) > MaxLabels {
		n.add("labels", strconv.Itoa(len(all)), "would be %d in all; at most %d are possible", len(all), MaxLabels)
	}
	return n.err()
}

// err is the error of what was found, nil when that is nothing.
func (n *normalizer) err() error {
	if len(n.problems) == 0 {
		return nil
	}
	return &Invalid{Problems: n.problems}
}
