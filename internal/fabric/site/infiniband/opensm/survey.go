package opensm

import (
	"context"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/keys"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/survey"
	"github.com/nearmetal/nearmetal/internal/fabric/topology"
)

var (
	_ site.Surveyor = (*Site)(nil)
	_ site.Governed = (*Site)(nil)
	_ site.Guarded  = (*Site)(nil)
)

// Survey implements site.Surveyor. It reads beside everything else that the executor does.
func (s *Site) Survey(ctx context.Context) (topology.Reading, error) {
	return survey.Reader{Run: s.cfg.Run, Adapter: s.cfg.Adapter, Port: s.cfg.Port, Config: s.diagnostics}.Survey(ctx)
}

// Guarded implements site.Guarded.
func (s *Site) Guarded() bool { return s.cfg.Keys != (keys.Keys{}) }

// Managers implements site.Governed: those that the last audit found.
func (s *Site) Managers() []api.SubnetManager {
	var all []api.SubnetManager
	for _, m := range s.Report().Managers {
		all = append(all, api.SubnetManager{GUID: m.GUID, Priority: m.Priority, State: strings.ReplaceAll(m.State.String(), " ", "_")})
	}
	return all
}

// Alarms implements site.Governed: those of the last audit, and a change of the file by others for a while.
func (s *Site) Alarms() []site.Alarm { return s.Report().Alarms }
