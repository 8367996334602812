package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// attachedInput names a volume of a cluster.
type attachedInput struct {
	Name   string `path:"name" doc:"Name of the cluster: NAME or PROJECT.NAME"`
	Volume string `path:"volume" doc:"Name of the volume within the cluster's project"`
}

func (s *Server) registerVolumeAttachments() {
	operation(s, "POST /v1/clusters/{name}/volumes", AccessChange, "attach-volume", "Attach a volume to a cluster",
		"All members get the volume while they run; new members get it when they start. `status.members[].volume_changes` shows the progress. Only "+
			"members on the stacks container and vm take volumes while they run, and no home. Virtual machines take them once they are not paused. A volume that is attached in the same way stays as it is.",
		http.StatusOK, s.attachVolume,
		bodyCodes(codeInvalidRequest, codeNoCluster, codeWrongPhase, codeCantAttach, codeUnknownVolume, codeVolumeInUse)...)
	operation(s, "DELETE /v1/clusters/{name}/volumes/{volume}", AccessChange, "detach-volume", "Detach a volume from a cluster",
		"All members let go of the volume while they run. A member that has files of the volume open keeps it until these are closed. The volume is in use "+
			"until all members have let go; `status.members[].volume_changes` and `status.detaching_volumes` show the progress.",
		http.StatusOK, s.detachVolume, codeNoCluster, codeWrongPhase, codeCantAttach, codeNotAttached, codeVolumeInUse)
}

func (s *Server) attachVolume(ctx context.Context, in *namedBody) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	req, src, err := readBody[api.VolumeAttachment](in.body())
	if err != nil {
		return nil, err
	}
	name := shownName(who(ctx), c.Name())
	return s.changeVolumes(ctx, c, func(intent *api.ClusterIntent) error {
		if i := attachedIndex(intent, req.Name); i >= 0 {
			has := intent.Spec.Volumes[i]
			if has.MountPath() == req.MountPath() && has.ReadOnly == req.ReadOnly {
				return nil
			}
			return fail(codeCantAttach, "volume %q is attached to cluster %q already, %s; detach it first: nearmetal volume detach %s %s",
				req.Name, name, howAttached(has), req.Name, name)
		}
		all, err := manifest.Attached(&intent.Spec, req, src)
		if err != nil {
			return failInvalid(err, codeInvalidRequest)
		}
		if err := checkVolumesChange(name, intent, c); err != nil {
			return err
		}
		next := *intent
		next.Spec.Volumes = all
		if err := s.checkReach(name, &next, c); err != nil {
			return err
		}
		intent.Spec.Volumes = all
		return nil
	})
}

func (s *Server) detachVolume(ctx context.Context, in *attachedInput) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	name := shownName(who(ctx), c.Name())
	return s.changeVolumes(ctx, c, func(intent *api.ClusterIntent) error {
		i := attachedIndex(intent, in.Volume)
		switch {
		case i < 0 && slices.ContainsFunc(intent.Detaching, func(d api.VolumeDetach) bool { return d.Name == in.Volume }):
			return nil // that was requested before
		case i < 0 && intent.Spec.Home.Kind == api.HomeOfUser && in.Volume == api.HomeVolumeName(intent.User),
			i >= 0 && intent.Spec.Volumes[i].MountPath() == "/home":
			return fail(codeCantAttach, "volume %q is the home of cluster %q, which its members have until they end", in.Volume, name)
		case i < 0:
			return fail(codeNotAttached, "volume %q is not attached to cluster %q; 'nearmetal cluster show %s' lists its volumes", in.Volume, name, name)
		}
		if err := checkVolumesChange(name, intent, c); err != nil {
			return err
		}
		intent.Spec.Volumes = slices.Delete(slices.Clone(intent.Spec.Volumes), i, i+1)
		return nil
	})
}

// changeVolumes changes the volumes of a cluster.
func (s *Server) changeVolumes(ctx context.Context, c *state.Cluster, change func(*api.ClusterIntent) error) (*body[api.Cluster], error) {
	after, err := s.changeIntent(ctx, c, change)
	return after, volumesFailure(err)
}

// volumesFailure makes a refusal of what the store says about a cluster's volumes.
func volumesFailure(err error) error {
	var still *state.DetachingError
	switch {
	case errors.As(err, &still):
		return fail(codeCantAttach, "volume %q is still being detached from the cluster, which has it %s; wait until that is done, or attach it in that way",
			still.Volume.Name, howAttached(still.Volume))
	case errors.Is(err, state.ErrOneMachine):
		return fail(codeCantAttach, "%v", err)
	case errors.Is(err, state.ErrNoVolume):
		return fail(codeUnknownVolume, "%v", err)
	case errors.Is(err, state.ErrInUse) || errors.Is(err, state.ErrAccess):
		return fail(codeVolumeInUse, "%v", err)
	}
	return err
}

// volumesDiffer finds differences of volumes that can't change: all where members take none while they run, else the home, and how a volume is attached.
func volumesDiffer(was, want *api.ClusterSpec, differ func(path string, was, want any)) {
	if lifecycle.VolumeAttachable(was) != "" {
		differ("volumes", attachmentsText(*was), attachmentsText(*want))
		return
	}
	differ("volumes", homeVolume(was), homeVolume(want))
	for _, has := range was.Volumes {
		for _, v := range want.Volumes {
			if v.Name == has.Name {
				differ("volumes["+v.Name+"]", howAttached(has), howAttached(v))
			}
		}
	}
}

// homeVolume names the volume that is the home of a cluster.
func homeVolume(spec *api.ClusterSpec) string {
	for _, v := range spec.Volumes {
		if v.MountPath() == "/home" {
			return v.Name + " at /home"
		}
	}
	return "none at /home"
}

// applyVolumes attaches the volumes that a file has beyond those of the cluster, and detaches the others.
func (s *Server) applyVolumes(ctx context.Context, c *state.Cluster, intent *api.ClusterIntent, want api.ClusterSpec) ([]api.PlanStep, error) {
	var steps []api.PlanStep
	for _, v := range want.Volumes {
		if attachedIndex(intent, v.Name) < 0 {
			steps = append(steps, api.PlanStep{Action: "add", Path: "volumes[" + v.Name + "]", To: howAttached(v), Message: fmt.Sprintf("volume %q is attached %s", v.Name, howAttached(v))})
		}
	}
	attaches := len(steps) > 0
	for _, v := range intent.Spec.Volumes {
		if !slices.ContainsFunc(want.Volumes, func(w api.VolumeAttachment) bool { return w.Name == v.Name }) {
			steps = append(steps, api.PlanStep{Action: "remove", Path: "volumes[" + v.Name + "]", From: howAttached(v), Message: fmt.Sprintf("volume %q is detached", v.Name)})
		}
	}
	if len(steps) == 0 {
		return nil, nil
	}
	name := shownName(who(ctx), c.Name())
	if err := checkVolumesChange(name, intent, c); err != nil {
		return nil, err
	}
	next := *intent
	next.Spec.Volumes = want.Volumes
	if attaches {
		if err := s.checkReach(name, &next, c); err != nil {
			return nil, err
		}
	}
	intent.Spec.Volumes = want.Volumes
	return steps, nil
}

func attachedIndex(in *api.ClusterIntent, volume string) int {
	return slices.IndexFunc(in.Spec.Volumes, func(a api.VolumeAttachment) bool { return a.Name == volume })
}

func howAttached(a api.VolumeAttachment) string {
	if a.ReadOnly {
		return "read-only at " + a.MountPath()
	}
	return "at " + a.MountPath()
}

// checkVolumesChange refuses other volumes to a cluster whose members can't have any, or that is over.
func checkVolumesChange(name string, intent *api.ClusterIntent, c *state.Cluster) error {
	switch phase := phaseOf(c); {
	case phase == api.ClusterRefused || phase == api.ClusterFailed:
		return fail(codeWrongPhase, "cluster %q is %s, and its volumes can't change any more; delete it: nearmetal cluster delete %s", name, phase, name)
	case c.Record != nil && c.Record.ExpiredAt != nil:
		return isExpired(name)
	}
	if why := lifecycle.VolumeAttachable(&intent.Spec); why != "" {
		return fail(codeCantAttach, "the volumes of cluster %q can't change: %s", name, why)
	}
	return nil
}

// checkReach refuses a cluster whose members would not reach all of its volumes, or could not mount them.
func (s *Server) checkReach(name string, intent *api.ClusterIntent, c *state.Cluster) error {
	if err := underLayers(name, intent); err != nil {
		return err
	}
	view := s.cfg.Reader.View()
	for _, g := range intent.Spec.Groups {
		if img := view.ImageOf(g.Environment); img != nil && img.Disk != nil {
			return fail(codeCantAttach, "members of group %q of cluster %q have the disk of another system, environment %q, without an agent to mount a volume", g.Name, name, g.Environment)
		}
	}
	nodes, first := []string{}, ""
	for a := range c.Held() {
		if a.IsMember() && !slices.Contains(nodes, a.Node) {
			nodes = append(nodes, a.Node)
		}
	}
	for _, asked := range api.VolumesOf(intent) {
		v := view.VolumeNamed(state.VolumeName(intent.Project, asked.Name))
		switch {
		case v == nil || v.Intent.UID == "":
			return fail(codeUnknownVolume, "the project has no such volume: %q", asked.Name)
		case v.Record == nil && len(nodes) > 0:
			return fail(codeCantAttach, "volume %q has no node yet, and cluster %q has its members already; attach it once it is ready: nearmetal volume show %s", asked.Name, name, asked.Name)
		case v.Record == nil:
			continue
		case first == "":
			first = v.Record.Node
		}
		for _, node := range append([]string{first}, nodes...) {
			if why := situation.VolumeReach(view, s.cfg.Encrypted, asked.Name, v.Record.Node, node); why != "" {
				what := "members"
				if !slices.Contains(nodes, node) {
					what = "the other volumes"
				}
				return fail(codeCantAttach, "%s, where %s of cluster %q are; %s", why, what, name,
					fmt.Sprintf("attach it to a cluster that has its members on node %s", v.Record.Node))
			}
		}
	}
	return nil
}

// volumeChangesOf returns the volumes that a member is about to have, or to let go of, with what that waits for.
func volumeChangesOf(c *state.Cluster, a *api.Assignment, seen Observed) []api.MemberVolumeChange {
	changes := lifecycle.VolumeChanges(&c.Intent, a)
	if len(changes) == 0 {
		return nil
	}
	_, unmounted := seen.Mounted(a)
	for i := range changes {
		changes[i].Message = unmounted
	}
	return changes
}

// detachingNames are the volumes that members may still have, and are to let go of.
func detachingNames(c *state.Cluster) []string {
	var names []string
	for _, d := range c.Detaching() {
		names = append(names, d.Name)
	}
	return names
}
