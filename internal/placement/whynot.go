package placement

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// WhyNot tells people why a node can't get one more member of a group, "" where it can. undecided: the node is not heard of, and may yet.
func (s *Sketch) WhyNot(node string, g api.Group) (reason string, undecided bool) {
	id, ok := s.view.ids[node]
	if !ok {
		return fmt.Sprintf("the site has no node %s", node), false
	}
	var passed suits
	switch s.view.suits(id, g, &passed) {
	case "":
	case ConstraintVolume:
		return fmt.Sprintf("node %s can't have %s", node, volumePlaceText(g.VolumePlace)), false
	case ConstraintLabels:
		return fmt.Sprintf("node %s does not have the labels that group %q selects", node, g.Name), false
	case ConstraintStack:
		return fmt.Sprintf("node %s does not offer stack %s", node, g.Stack), false
	case ConstraintEnvironment:
		return fmt.Sprintf("node %s can't run environment %q", node, g.Environment), false
	case ConstraintCPUModel:
		return fmt.Sprintf("node %s can't carry CPU model %q", node, g.CPUModel), false
	case ConstraintMTU:
		return fmt.Sprintf("node %s can't carry network %s: %s", node, cmp.Or(g.PortMTU.VLAN, g.PortMTU.Network), mtuProblem(s.view.nodes[id].record, g.PortMTU)), false
	case ConstraintFabric:
		return fmt.Sprintf("node %s %s", node, fabricProblem(s.view.nodes[id].record, g.Interconnect)), false
	case ConstraintLocalDisks:
		return fmt.Sprintf("node %s lacks local disks: %s", node, localDisksProblem(s.view.nodes[id].record, g.LocalDisks)), false
	case ConstraintGPUPrograms:
		return fmt.Sprintf("node %s can't carry members with remote GPUs: %s", node, noGPUPrograms), false
	default:
		return fmt.Sprintf("the site has no node %s", node), false
	}
	switch availability := s.view.nodes[id].availability; availability {
	case Schedulable:
		if !s.view.beforeWindow(id, &g) {
			return fmt.Sprintf("node %s has maintenance before the member would end", node), false
		}
	case Unknown:
		return fmt.Sprintf("node %s is not reporting", node), true
	case Returning:
		return fmt.Sprintf("node %s is being cleaned, inspected or switched off", node), false
	default:
		return fmt.Sprintf("node %s is %s", node, availability), false
	}
	if _, ok := s.FitOn(node, g); ok {
		return "", false
	}
	r, need := &s.view.rows[id], resource.OnNode(&g)
	var short []string
	if int64(r.freeCores) < need[resource.Cores] {
		short = append(short, fmt.Sprintf("%s free, %s needed", resource.Cores.Text(int64(max(r.freeCores, 0))), resource.Cores.Text(need[resource.Cores])))
	}
	if r.freeMemory < need[resource.Memory] {
		short = append(short, fmt.Sprintf("%s of memory free, %s needed", api.Bytes(max(r.freeMemory, 0)), api.Bytes(need[resource.Memory])))
	}
	if class, lacks := shortBesides(besidesOf(&g), s.view.availableBesides(id, freeNow)); lacks {
		free := max(s.view.availableBesides(id, freeNow)[class], 0)
		short = append(short, fmt.Sprintf("%s free, %s needed", class.Text(free), class.Text(besidesOf(&g)[class])))
	}
	short = append(short, s.shortDevices(id, &g)...)
	if len(short) == 0 {
		return fmt.Sprintf("node %s has no room for it", node), false
	}
	return fmt.Sprintf("node %s has no room for it (%s)", node, strings.Join(short, "; ")), false
}

// shortDevices tells which devices a node lacks that a member of a group needs there.
func (s *Sketch) shortDevices(id int32, g *api.Group) (short []string) {
	own := *g
	own.Devices, own.Size = ownDevices(g), 1
	if len(own.Devices) == 0 || s.view.finder(own, 0, conditions{devices: true}, nil).roomDevices(id, 1) > 0 {
		return nil
	}
	for _, r := range own.Devices {
		switch why := s.functionProblem(id, r); {
		case r.Class == api.ClassGPU:
			short = append(short, cmp.Or(s.gpuProblem(id, r), "it has no GPU")+"; "+gpuText(r)+" needed")
		case !onFunction(r):
			short = append(short, fmt.Sprintf("%d of device class %q handed out as %q needed", r.Count, r.Class, r.Way))
		case why == "":
			short = append(short, functionText(r)+" needed")
		default:
			short = append(short, why)
		}
	}
	return short
}

// WhyNowhere is WhyNot for every node that suits a group, but for the one left out. unfit has the reasons of nodes that can't take it whatever room
// they have. A few nodes are named.
func (s *Sketch) WhyNowhere(g api.Group, without string, unfit map[string]string) (reason string, undecided bool) {
	const named = 3
	var reasons []string
	more := 0
	for _, id := range s.view.order {
		name := s.view.nodes[id].record.Name
		if name == without || s.view.nodes[id].availability == Absent {
			continue
		}
		why, maybe := unfit[name], false
		if why == "" {
			why, maybe = s.WhyNot(name, g)
		}
		undecided = undecided || maybe
		if len(reasons) == named {
			more++
			continue
		}
		reasons = append(reasons, why)
	}
	switch {
	case len(reasons) == 0:
		return "the site has no other node", false
	case more > 0:
		reasons = append(reasons, fmt.Sprintf("and %d more", more))
	}
	return "no other node can take it: " + strings.Join(reasons, "; "), undecided
}
