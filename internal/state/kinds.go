package state

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// kinds lists everything that is stored. A new kind is a prefix, a registration here and a list in View.
var kinds = []registration{
	// format: written at the first start.
	&stored[formatRecord]{prefix: keyFormat},

	// project/PROJECT, written by API handlers, and projectuse/PROJECT, with everything that begins to belong to the project.
	projects,
	&stored[projectUse]{prefix: prefixProjectUse},
	// token/TOKEN, written by API handlers.
	tokens,
	// shape/SHAPE, written by API handlers.
	shapes,

	// intent/CLUSTER, written by API handlers. record/CLUSTER is the header whose commit makes a generation true. chunk/CLUSTERUID/CHUNK is immutable,
	// and true only when a record names it.
	&stored[api.ClusterIntent]{prefix: prefixIntent, of: clusters, take: takeIntent, drop: dropCluster},
	&stored[api.ClusterRecord]{prefix: prefixRecord, of: clusters, take: takeRecord, bound: boundRecord},
	&stored[[]api.Assignment]{prefix: prefixChunk, take: takeChunk, drop: dropChunk},
	// job/JOB, written by API handlers, and by the leader as it goes on.
	jobs,
	// event/LOG/SEQ, SEQ as 12 digits, and eventpack/LOG/SEQ with many, of which SEQ is the last; events/LOG has the first and last that are kept. LOG is CLUSTER, or @NODE for a machine's.
	&stored[api.Event]{prefix: prefixEvent, bound: func(e *api.Event) { e.Message = api.ShortMessage(e.Message) }},
	&stored[eventPack]{prefix: prefixEventPack},
	&stored[eventLog]{prefix: prefixEventLog, take: takeEventLog, drop: dropEventLog},
	// quarantine/ASSIGNMENT, usage/CLUSTERUID/SEQ (immutable) and nodespan/NODE/SEQ, SEQ as 12 digits, and formernodespan/TO/NODE (immutable), TO as 20 digits of
	// nanoseconds since 1970, written by the leader.
	quarantines,
	&stored[api.UsageRecord]{prefix: prefixUsage, take: takeUsage},
	nodeSpans,
	// energy/HOUR/NODE, HOUR as 10 digits in UTC, written by the leader: again and again while the hour lasts.
	&stored[api.EnergyRecord]{prefix: prefixEnergy},
	&stored[api.NodeSpan]{prefix: prefixFormerSpan},
	// network/UID, written by the leader, immutable. networkintent/NAME, written by API handlers, and networkuse/UID, with each commit that
	// gives a cluster a port on a project's network or stores a cluster that will have one.
	networks, networkIntents,
	&stored[networkUse]{prefix: prefixNetUse, of: networkUses, take: takeNetworkUse, drop: dropNetworkUse},

	// securitygroup/GROUP, written by API handlers, and securitygroupuse/UID, with each commit that stores a cluster or a group which names it.
	securityGroups,
	&stored[securityGroupUse]{prefix: prefixGroupUse},
	// dataset/DATASET, written by API handlers, and datasetuse/UID, with each commit that stores a cluster which asks for it.
	datasets,
	&stored[datasetUse]{prefix: prefixDatasetUse},
	// datapaths/NODE and dataoutcomes/DATASETUID, written by the leader when a figure has changed notably, and when a prediction turned out.
	dataPaths, dataOutcomes,
	// address/ADDRESS, written by API handlers, and addressuse/PROJECT, with each commit that allocates or assigns an address of the project.
	addresses,
	&stored[addressUse]{prefix: prefixAddressUse},
	// volumeintent/NAME, written by API handlers, volumerecord/UID, written by the leader. volumeuse/UID, with each commit that stores a cluster
	// which asks for the volume, and volumeproject/PROJECT, with each that makes or grows a volume of the project.
	&stored[api.VolumeIntent]{prefix: prefixVolumeIntent, of: volumes, take: takeVolumeIntent, drop: dropVolumeIntent},
	&stored[api.VolumeRecord]{prefix: prefixVolumeRecord, of: volumes, take: takeVolumeRecord, drop: dropVolumeRecord},
	&stored[volumeUse]{prefix: prefixVolumeUse},
	&stored[volumeProject]{prefix: prefixVolumeProject},

	// node/NODE, as its agent says. nodecontrol/NODE, written by API handlers, is there only while operators want something of it.
	&stored[api.NodeRecord]{prefix: prefixNode, of: nodes, take: takeAgent, drop: dropAgent, bound: boundNode},
	&stored[api.NodeControl]{prefix: prefixControl, of: nodes, take: takeControl, drop: dropControl},
	// nodefaults/NODE, by the leader, with the events that it says were stored.
	&stored[api.FaultRecord]{prefix: prefixFaults, of: nodes, take: takeFaults, drop: dropFaults},
	// nodemeasures/NODE, by the leader, of nodes that hand out GPUs.
	&stored[api.NodeMeasures]{prefix: prefixMeasures, of: nodes, take: takeMeasures, drop: dropMeasures},
	// nodeidentity/NODE, written by API handlers, and by the boot API for machines.
	&stored[api.NodeIdentity]{prefix: prefixIdentity, of: nodes, take: takeIdentity, drop: dropIdentity},
	// machine/NODE, written by API handlers, and by the leader for what enrols by a token. machinerecord/NODE and hardware/NODE, by the leader.
	&stored[api.MachineIntent]{prefix: prefixMachine, of: nodes, take: takeMachine, drop: dropMachine},
	&stored[api.MachineRecord]{prefix: prefixMachineRecord, of: nodes, take: takeMachineRecord, bound: boundMachineRecord},
	&stored[api.Hardware]{prefix: prefixHardware, of: nodes, take: takeHardware},
	// machinelog/NODE, by the leader, with the events that it says were stored.
	&stored[api.BMCLogRecord]{prefix: prefixMachineLog, of: nodes, take: takeMachineLog},
	// mac/MAC, MAC as 12 digits in pairs with hyphens, written with the machine: whose a provisioning NIC is. machineindex/INDEX: whose a place in
	// the provisioning range is. redeemed/MACHINEUID: the newest exchange of a boot token.
	&stored[macRecord]{prefix: prefixMAC},
	&stored[indexRecord]{prefix: prefixMachineIndex},
	&stored[Redemption]{prefix: prefixRedeemed},
	// candidate/MAC and lease/MAC, written by the server that strangers boot from: a lease before it is offered.
	candidates, leases,
	// enrolltoken/TOKEN, written by API handlers, and by the leader with each use.
	enrollTokens,

	// build/BUILD, written by API handlers, and by the leader as it goes on. image/HEX, HEX as 64 digits,
	// changes only in who has built it. environment/NAME.
	builds, images, environments,
}

// Those that a View lists.
var (
	clusters = &kind[Cluster]{
		name: (*Cluster).Name, list: func(v *View) *[]*Cluster { return &v.Clusters },
		indexes: []*index[Cluster]{clusterByUID, clustersOnNode, clustersOnNetwork},
	}
	clustersOnNetwork = &index[Cluster]{
		in: func(v *View) *directory { return &v.clusterNetworks }, keys: (*Cluster).joined,
	}
	clusterByUID = &index[Cluster]{
		in: func(v *View) *directory { return &v.clusterUIDs }, keys: func(c *Cluster) []string { return unlessEmpty(c.UID()) },
	}
	clustersOnNode = &index[Cluster]{
		in: func(v *View) *directory { return &v.clusterNodes }, keys: func(c *Cluster) []string { return c.nodes },
	}

	nodes = &kind[Node]{
		name: func(n *Node) string { return n.Name }, list: func(v *View) *[]*Node { return &v.Nodes },
		indexes: []*index[Node]{machineByUID, machineByMAC, machineByBMC},
	}
	machineByUID = &index[Node]{
		in: func(v *View) *directory { return &v.machineUIDs }, keys: ofMachine(func(m *Machine) []string { return unlessEmpty(m.UID()) }),
	}
	machineByMAC = &index[Node]{
		in: func(v *View) *directory { return &v.machineMACs },
		keys: ofMachine(func(m *Machine) []string {
			return slices.Compact(slices.Sorted(slices.Values(m.Intent.Spec.MACs)))
		}),
	}
	machineByBMC = &index[Node]{
		in:   func(v *View) *directory { return &v.machineBMCs },
		keys: ofMachine(func(m *Machine) []string { return unlessEmpty(bmcPlace(m.Intent.Spec.Power)) }),
	}
	nodeSpans = &kind[api.NodeSpan]{
		prefix: prefixNodeSpan, name: NodeSpanKey,
		list: func(v *View) *[]*api.NodeSpan { return &v.NodeSpans },
	}
	jobs = &kind[api.Job]{
		prefix: prefixJob, name: func(j *api.Job) string { return j.ID },
		list: func(v *View) *[]*api.Job { return &v.Jobs }, bound: func(j *api.Job) { j.Message = api.ShortMessage(j.Message) },
	}
	quarantines = &kind[api.Quarantine]{
		prefix: prefixQuarantine, name: func(q *api.Quarantine) string { return q.Assignment.ID },
		list: func(v *View) *[]*api.Quarantine { return &v.Quarantines }, bound: func(q *api.Quarantine) { q.Reason = api.ShortMessage(q.Reason) },
	}
	networks = &kind[api.Network]{
		prefix: prefixNetwork, name: func(n *api.Network) string { return n.UID },
		list:    func(v *View) *[]*api.Network { return &v.Networks },
		indexes: []*index[api.Network]{networkByName},
	}
	networkByName = &index[api.Network]{
		in: func(v *View) *directory { return &v.networkNames }, keys: func(n *api.Network) []string { return []string{n.Name} },
	}
	networkIntents = &kind[api.NetworkIntent]{
		prefix: prefixNetIntent, name: func(n *api.NetworkIntent) string { return n.Name },
		list: func(v *View) *[]*api.NetworkIntent { return &v.NetworkIntents },
	}
	networkUses = &kind[netUse]{
		name: func(u *netUse) string { return u.uid }, list: func(v *View) *[]*netUse { return &v.networkUses },
	}
	securityGroups = &kind[api.SecurityGroup]{
		prefix: prefixSecurityGroup, name: func(g *api.SecurityGroup) string { return g.Name },
		list: func(v *View) *[]*api.SecurityGroup { return &v.SecurityGroups },
	}
	datasets = &kind[api.Dataset]{
		prefix: prefixDataset, name: func(d *api.Dataset) string { return d.Name },
		list: func(v *View) *[]*api.Dataset { return &v.Datasets },
	}
	dataPaths = &kind[api.DataPaths]{
		prefix: prefixDataPaths, name: func(p *api.DataPaths) string { return p.Node },
		list: func(v *View) *[]*api.DataPaths { return &v.DataPaths },
	}
	dataOutcomes = &kind[api.DataOutcomes]{
		prefix: prefixDataOutcomes, name: func(o *api.DataOutcomes) string { return o.UID },
		list: func(v *View) *[]*api.DataOutcomes { return &v.DataOutcomes },
	}
	addresses = &kind[api.FloatingAddress]{
		prefix: prefixAddress, name: func(a *api.FloatingAddress) string { return a.Address.String() },
		list: func(v *View) *[]*api.FloatingAddress { return &v.Addresses },
	}
	volumes = &kind[Volume]{
		name: (*Volume).UID, list: func(v *View) *[]*Volume { return &v.Volumes }, indexes: []*index[Volume]{volumeByName, volumesOnNode},
	}
	volumeByName = &index[Volume]{
		in: func(v *View) *directory { return &v.volumeNames }, keys: func(v *Volume) []string { return unlessEmpty(v.Intent.Name) },
	}
	volumesOnNode = &index[Volume]{
		in: func(v *View) *directory { return &v.volumeNodes }, keys: func(v *Volume) []string { return unlessEmpty(v.Node()) },
	}
	projects = &kind[api.Project]{
		prefix: prefixProject, name: func(p *api.Project) string { return p.Name },
		list: func(v *View) *[]*api.Project { return &v.Projects },
	}
	tokens = &kind[api.TokenInfo]{
		prefix: prefixToken, name: func(t *api.TokenInfo) string { return t.ID },
		list: func(v *View) *[]*api.TokenInfo { return &v.Tokens },
	}
	shapes = &kind[api.NamedShape]{
		prefix: prefixShape, name: func(s *api.NamedShape) string { return s.Name },
		list: func(v *View) *[]*api.NamedShape { return &v.Shapes },
	}
	candidates = &kind[api.Candidate]{
		prefix: prefixCandidate, name: func(c *api.Candidate) string { return c.MAC },
		list: func(v *View) *[]*api.Candidate { return &v.Candidates },
	}
	leases = &kind[api.Lease]{
		prefix: prefixLease, name: func(l *api.Lease) string { return l.MAC },
		list: func(v *View) *[]*api.Lease { return &v.Leases },
	}
	enrollTokens = &kind[api.EnrollmentToken]{
		prefix: prefixEnrollToken, name: func(t *api.EnrollmentToken) string { return t.ID },
		list: func(v *View) *[]*api.EnrollmentToken { return &v.EnrollTokens },
	}
	builds = &kind[api.Build]{
		prefix: prefixBuild, name: func(b *api.Build) string { return b.ID },
		list: func(v *View) *[]*api.Build { return &v.Builds }, bound: func(b *api.Build) { b.Message = api.ShortMessage(b.Message) },
	}
	images = &kind[api.Image]{
		prefix: prefixImage, name: func(i *api.Image) string { return i.Digest },
		list: func(v *View) *[]*api.Image { return &v.Images },
	}
	environments = &kind[api.EnvironmentRecord]{
		prefix: prefixEnvironment, name: func(e *api.EnvironmentRecord) string { return e.Name },
		list: func(v *View) *[]*api.EnvironmentRecord { return &v.Environments },
	}
)

// ofMachine makes keys of machines keys of nodes, of which not all are machines.
func ofMachine(keys func(*Machine) []string) func(*Node) []string {
	return func(n *Node) []string {
		if n.Machine == nil {
			return nil
		}
		return keys(n.Machine)
	}
}

func unlessEmpty(key string) []string {
	if key == "" {
		return nil
	}
	return []string{key}
}
