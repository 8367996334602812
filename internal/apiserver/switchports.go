package apiserver

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// ownSwitchPorts refuses ports that no managed switch has, and those of other machines: a machine would get into their networks. What the machine had
// before is not looked at, so that a change of the switches' settings does not keep it from being changed.
func (s *Server) ownSwitchPorts(req api.EnrollRequest, before []api.SwitchPort, src *manifest.Source) error {
	var problems []api.FieldProblem
	for i, p := range req.Spec.SwitchPorts {
		if slices.Contains(before, p) {
			continue
		}
		if why := s.switchPortProblem(req.Name, p); why != "" {
			at := fmt.Sprintf("spec.switch_ports[%d]", i)
			problems = append(problems, api.FieldProblem{Location: at, Line: src.Line(at), Value: p.Cell + ":" + p.Port, Message: why})
		}
	}
	if len(problems) > 0 {
		return failFields(codeInvalidRequest, problems...)
	}
	return nil
}

func (s *Server) switchPortProblem(name string, p api.SwitchPort) string {
	places, managed := s.cfg.Offers.Switches[p.Cell]
	if !managed {
		return fmt.Sprintf("the site manages no switches of cell %s; start its servers with --ethernet %s=FILE", p.Cell, p.Cell)
	}
	if _, is := places[p.Port]; !is {
		return fmt.Sprintf("the settings of cell %s name no port %s; correct it, or add the port there", p.Cell, p.Port)
	}
	for m := range s.cfg.Reader.View().Machines() {
		if m.Name() != name && slices.ContainsFunc(m.Intent.Spec.SwitchPorts, func(o api.SwitchPort) bool { return o.Cell == p.Cell && o.Port == p.Port }) {
			return fmt.Sprintf("is the port of machine %q already; if the cable was moved, take it from that one first: nearmetal node set %s --switch-port ...", m.Name(), m.Name())
		}
	}
	return ""
}
