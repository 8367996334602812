package apiserver

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/plan"
)

// maxVolumes is how many volumes a project may have, those that are deleted and not yet purged included.
const maxVolumes = 256

// volumeInput names a volume, volumeBody is a body that is about one, and volumeSnapshotInput names a snapshot of one.
type (
	volumeInput struct {
		Name string `path:"name" doc:"NAME or a UID; of another project PROJECT.NAME"`
	}
	volumeDelete struct {
		Name string `path:"name" doc:"NAME or a UID; of another project PROJECT.NAME"`
		Now  bool   `query:"now" doc:"Purge the volume now instead of keeping it for its retention"`
	}
	volumeBody struct {
		Name        string `path:"name" doc:"NAME or a UID; of another project PROJECT.NAME"`
		ContentType string `header:"Content-Type" hidden:"true"`
		RawBody     []byte `contentType:"application/json"`
	}
	volumeSnapshotInput struct {
		Name     string `path:"name" doc:"NAME or a UID; of another project PROJECT.NAME"`
		Snapshot string `path:"snapshot" doc:"Name of the snapshot"`
	}
)

func (s *Server) registerVolumes() {
	operation(s, "GET /v1/volumes", AccessRead, "list-volumes", "List volumes",
		"Volumes by name, also those that are deleted and not yet purged: those of the token's project; for an administrator those of all projects.",
		http.StatusOK, s.listVolumes)
	operation(s, "POST /v1/volumes", AccessChange, "create-volume", "Create a volume of a project",
		"A volume is a file system of a bounded size on the disk of one node. It outlives clusters. `from` makes it a clone of a snapshot, or of what "+
			"another volume holds now, on the same node. With `from_backup`, its node waits for a backup (`phase` is `importing`, and `import` is there), which "+
			"`POST /v1/volumes/{name}/content` sends. `phase` tells when it is ready, and `message` why it is not.",
		http.StatusCreated, s.createVolume,
		bodyCodes(codeInvalidRequest, codeVolumeExists, codeTooManyVolumes, codeNoVolume, codeNoVolumeSnapshot, codeVolumeDeleted, codeVolumeImporting, codeNoNode, codeOverQuota, codeNoProject)...)
	operation(s, "GET /v1/volumes/{name}", AccessRead, "get-volume", "Show a volume", "", http.StatusOK, s.getVolume, codeNoVolume)
	operation(s, "PATCH /v1/volumes/{name}", AccessChange, "change-volume", "Change the size, files, access, limit of I/O or retention of a volume",
		"What is omitted stays. A volume grows as soon as its node has room; `message` tells what it waits for. It shrinks unless it holds more.",
		http.StatusOK, s.changeVolume, bodyCodes(codeInvalidRequest, codeNoVolume, codeVolumeDeleted, codeVolumeInUse, codeVolumeTooFull, codeOverQuota)...)
	operation(s, "DELETE /v1/volumes/{name}", AccessChange, "delete-volume", "Delete a volume",
		"The volume is kept for its retention, and can be undeleted until then. Then, or at once with `now`, its node wipes it. Refused while a cluster "+
			"has it attached.", http.StatusAccepted, s.deleteVolume, codeNoVolume, codeVolumeInUse)
	operation(s, "POST /v1/volumes/{name}/undelete", AccessChange, "undelete-volume", "Undelete a volume",
		"A volume that is not deleted stays as it is.", http.StatusOK, s.undeleteVolume, codeNoVolume, codeVolumePurging)
	operation(s, "DELETE /v1/volumes/{name}/content", AccessChange, "give-up-import", "Delete a volume that still waits for its backup",
		"It is wiped at once. A volume that has become whole is never deleted by this, at the same moment included.",
		http.StatusAccepted, s.giveUpImport, codeNoVolume, codeVolumeNotImporting)
	s.registerVolumeSnapshots()
}

func noVolume(name string) *failure {
	return fail(codeNoVolume, "volume %q does not exist; 'nearmetal volume list' lists the volumes", name)
}

// volumeFailure makes a refusal of what the store says about a volume.
func volumeFailure(err error, name string) error {
	switch {
	case errors.Is(err, state.ErrNotFound):
		return noVolume(name)
	case errors.Is(err, state.ErrDeleted):
		return fail(codeVolumeDeleted, "%v; bring it back first: nearmetal volume undelete %s", err, name)
	case errors.Is(err, state.ErrPurging):
		return fail(codeVolumePurging, "%v and can't be brought back", err)
	case errors.Is(err, state.ErrInUse) || errors.Is(err, state.ErrAccess):
		return fail(codeVolumeInUse, "%v", err)
	case errors.Is(err, state.ErrNotImporting):
		return fail(codeVolumeNotImporting, "%v; create a new volume of the backup", err)
	case errors.Is(err, state.ErrNoVolume):
		return fail(codeNoVolume, "%v", err)
	}
	return err
}

// findVolume returns the volume that a principal means by a name or a UID, and may know of, or nil.
func findVolume(p tenancy.Principal, view *state.View, name string) *state.Volume {
	var v *state.Volume
	if full, err := tenancy.Resolve(p, "", name); err == nil {
		v = view.VolumeNamed(full)
	}
	if v == nil {
		v = view.Volume(name)
	}
	if v == nil || v.Intent.UID == "" || !seesProject(p, v.Intent.Project) {
		return nil
	}
	return v
}

// volumeToChange finds a volume for whoever may change it.
func (s *Server) volumeToChange(ctx context.Context, name string) (*state.Volume, error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	v := findVolume(p, view, name)
	if v == nil {
		return nil, noVolume(name)
	}
	return v, mayChangeShared(p, view, projectOr(v.Intent.Project), "volumes")
}

func (s *Server) listVolumes(ctx context.Context, _ *struct{}) (*body[api.List[api.VolumeStatus]], error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	now := situation.Volumes(view, s.cfg.Live, s.cfg.Now())
	list := api.List[api.VolumeStatus]{Items: []api.VolumeStatus{}}
	for _, v := range view.Volumes {
		if v.Intent.UID != "" && seesProject(p, v.Intent.Project) {
			list.Items = append(list.Items, joinVolume(p, view, &now, v))
		}
	}
	slices.SortStableFunc(list.Items, func(a, b api.VolumeStatus) int {
		return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.Name, b.Name))
	})
	return &body[api.List[api.VolumeStatus]]{list}, nil
}

func (s *Server) getVolume(ctx context.Context, in *volumeInput) (*body[api.VolumeStatus], error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	v := findVolume(p, view, in.Name)
	if v == nil {
		return nil, noVolume(in.Name)
	}
	return &body[api.VolumeStatus]{s.showVolume(p, view, v)}, nil
}

func (s *Server) showVolume(p tenancy.Principal, view *state.View, v *state.Volume) api.VolumeStatus {
	now := situation.Volumes(view, s.cfg.Live, s.cfg.Now())
	return joinVolume(p, view, &now, v)
}

// afterVolumeWrite shows a volume as it is after a write.
func (s *Server) afterVolumeWrite(ctx context.Context, in api.VolumeIntent, revision int64) api.VolumeStatus {
	view, _ := s.readOwnWrite(ctx, revision)
	v := view.Volume(in.UID)
	if v == nil || v.Intent.UID == "" {
		v = &state.Volume{Intent: in}
	}
	return s.showVolume(who(ctx), view, v)
}

// joinVolume makes what users see of a volume: as it is stored, with what its node found.
func joinVolume(p tenancy.Principal, view *state.View, now *plan.Situation, v *state.Volume) api.VolumeStatus {
	in := &v.Intent
	_, own := tenancy.Split(in.Name)
	seen := plan.Show(now, in.UID)
	out := api.VolumeStatus{
		Name: own, UID: in.UID, Project: projectOr(in.Project), User: in.User, Home: in.Home, Cluster: ownerOf(p, in),
		Kind: cmp.Or(in.Kind, api.VolumeFiles), Size: api.Bytes(in.SizeBytes), Files: in.MaxFiles, Access: in.Access, Retention: in.Retention,
		IOLimit: api.Bytes(in.IOBytesPerSecond), IOUnlimited: seen.UnlimitedIO, WantedNode: in.Node, From: fromOf(view, in.Origin), FromBackup: in.Origin.IsUpload(),
		Phase: cmp.Or(seen.Phase, api.VolumePending), Message: seen.Message, Resizing: seen.Resizing, Undecided: seen.Undecided, Node: v.Node(), Snapshots: []api.VolumeSnapshot{}, Clusters: []api.VolumeCluster{},
		CreatedAt: in.CreatedAt, DeletedAt: in.DeleteRequestedAt, PurgeAt: in.PurgeAt,
	}
	if v.Record != nil {
		out.Held = api.Bytes(v.Record.SizeBytes)
	}
	found := seen.State
	if found == nil {
		found = &volume.State{}
	} else if found.Ready {
		used, files := api.Bytes(found.UsedBytes), found.UsedFiles
		out.Used, out.UsedFiles = &used, &files
	}
	if i := found.Import; i != nil && out.Phase == api.VolumeImporting {
		out.Import = &api.VolumeImport{Receiving: i.Receiving, Received: api.Bytes(i.ReceivedBytes), Failure: i.Failure}
	}
	for _, snapshot := range in.Snapshots {
		one := api.VolumeSnapshot{Name: snapshot.Name, UID: snapshot.UID, CreatedAt: snapshot.CreatedAt}
		if i := slices.IndexFunc(found.Snapshots, func(s volume.SnapshotState) bool { return s.UID == snapshot.UID }); i >= 0 {
			one.Ready, one.Bytes = true, api.Bytes(found.Snapshots[i].HeldBytes)
		}
		out.Snapshots = append(out.Snapshots, one)
	}
	if r := in.Restore; r != nil {
		out.Restore = &api.VolumeRestore{Snapshot: snapshotName(in, r.SnapshotUID), Done: seen.State != nil && found.Restored >= r.Number}
	}
	for _, c := range view.ClustersWithVolume(v) {
		if seesCluster(p, c.Name()) {
			out.Clusters = append(out.Clusters, volumeCluster(c, in, found))
		}
	}
	return out
}

func volumeCluster(c *state.Cluster, in *api.VolumeIntent, found *volume.State) api.VolumeCluster {
	_, name := tenancy.Split(c.Name())
	_, own := tenancy.Split(in.Name)
	out := api.VolumeCluster{Cluster: name, Attached: slices.Contains(found.Attached, c.UID())}
	for _, a := range api.VolumesOf(&c.Intent) {
		out.ReadOnly = out.ReadOnly || a.Name == own && a.ReadOnly
	}
	for _, d := range c.Detaching() {
		if d.UID == in.UID {
			out.Detaching, out.ReadOnly = true, d.ReadOnly
		}
	}
	return out
}

// fromOf names what a volume began as: by name where that is still there.
func fromOf(view *state.View, o *api.VolumeOrigin) string {
	if !o.IsSnapshot() {
		return ""
	}
	v := view.Volume(o.VolumeUID)
	if v == nil {
		return o.VolumeUID
	}
	_, own := tenancy.Split(v.Intent.Name)
	if name := snapshotName(&v.Intent, o.SnapshotUID); name != "" {
		return own + "@" + name
	}
	return own
}

// snapshotName is the name of a volume's snapshot, "" if it is not there any more.
func snapshotName(in *api.VolumeIntent, uid string) string {
	for _, s := range in.Snapshots {
		if s.UID == uid {
			return s.Name
		}
	}
	return ""
}

func (s *Server) createVolume(ctx context.Context, in *rawBody) (*created[api.VolumeStatus], error) {
	req, src, err := readBody[api.VolumeRequest](*in)
	if err != nil {
		return nil, err
	}
	if err := manifest.CheckVolume(req, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	p, view := who(ctx), s.cfg.Reader.View()
	project := cmp.Or(req.Project, projectOr(p.Project))
	if err := mayChangeShared(p, view, project, "volumes"); err != nil {
		return nil, err
	}
	v := api.VolumeIntent{
		Name: tenancy.FullName(project, req.Name), UID: newID(uidLetters), Project: project, User: userOf(ctx), SizeBytes: int64(req.Size), MaxFiles: req.Files,
		Access: cmp.Or(req.Access, api.VolumeOneWriter), IOBytesPerSecond: int64(req.IOLimit), Node: req.Node, Kind: req.Kind, Retention: api.DefaultVolumeRetention,
		CreatedAt: s.cfg.Now().UTC(),
	}
	if req.Retention != nil {
		v.Retention = *req.Retention
	}
	if err := volumeIsNew(view, project, req.Name, s.cfg.Now()); err != nil {
		return nil, err
	}
	if req.Node != "" && view.Node(req.Node) == nil {
		return nil, noNode(req.Node)
	}
	switch {
	case req.From != "":
		if err := beginAs(view, &v, req.From, src); err != nil {
			return nil, err
		}
	case req.FromBackup:
		v.Origin = &api.VolumeOrigin{Upload: true}
	}
	if v.Kind != api.VolumeBlock {
		v.Kind = ""
		v.MaxFiles = cmp.Or(v.MaxFiles, filesFor(v.SizeBytes))
	}
	revision, err := s.storeVolume(ctx, view, &v)
	if err != nil {
		return nil, err
	}
	return &created[api.VolumeStatus]{Location: "/v1/volumes/" + v.UID, Body: s.afterVolumeWrite(ctx, v, revision)}, nil
}

// storeVolume stores a new volume that its project's quota has room for.
func (s *Server) storeVolume(ctx context.Context, view *state.View, v *api.VolumeIntent) (int64, error) {
	_, own := tenancy.Split(v.Name)
	revision, err := s.cfg.Writer.CreateVolume(ctx, *v, func(others []api.VolumeIntent) error {
		return s.storageFits(view, v, others, 0, v.SizeBytes)
	})
	switch {
	case errors.Is(err, state.ErrExists):
		return 0, volumeExists(own, nil, s.cfg.Now())
	case errors.Is(err, state.ErrNoProject):
		return 0, noProject(v.Project)
	case err != nil:
		return 0, volumeFailure(err, own)
	}
	return revision, nil
}

// filesFor is how many files a volume of a size holds, unless its user says otherwise.
func filesFor(size int64) int64 { return size / api.VolumeBytesPerFile }

// volumeIsNew refuses a volume whose name is taken, or that would be one too many.
func volumeIsNew(view *state.View, project, name string, now time.Time) error {
	if v := view.VolumeNamed(tenancy.FullName(project, name)); v != nil {
		return volumeExists(name, &v.Intent, now)
	}
	count := 0
	for _, v := range view.Volumes {
		if projectOr(v.Intent.Project) == project {
			count++
		}
	}
	if count >= maxVolumes {
		return tooManyVolumes(project, count)
	}
	return nil
}

func tooManyVolumes(project string, count int) *failure {
	return fail(codeTooManyVolumes, "project %q has %d volumes, the most that a project may have; delete one with --now first", project, count)
}

// volumeExists says that a name is taken, perhaps by a volume that was deleted.
func volumeExists(name string, in *api.VolumeIntent, now time.Time) *failure {
	switch {
	case in == nil || in.DeleteRequestedAt == nil:
		return fail(codeVolumeExists, "volume %q already exists; choose another name, or change it: nearmetal volume resize %s", name, name)
	case in.PurgeAt != nil && now.Before(*in.PurgeAt):
		return fail(codeVolumeExists, "volume %q was deleted, and keeps its name until %s; choose another name, bring it back with 'nearmetal volume undelete %s', "+
			"or purge it with 'nearmetal volume delete %s --now'", name, in.PurgeAt.UTC().Format(time.RFC3339), name, name)
	}
	return fail(codeVolumeExists, "volume %q is being purged, and keeps its name until its node has wiped it; choose another name, or wait", name)
}

// found returns what nodes found of volumes.
func (s *Server) found(view *state.View) func(uid string) *volume.State {
	return func(uid string) *volume.State {
		v := view.Volume(uid)
		if v == nil || v.Record == nil {
			return nil
		}
		states, _, _ := s.cfg.Live.Volumes(v.Record.Node)
		if i := slices.IndexFunc(states, func(s volume.State) bool { return s.UID == uid }); i >= 0 {
			return &states[i]
		}
		return nil
	}
}

// storageFits refuses a volume that would make its project hold more than its quota. others are the project's other volumes, has what the volume holds
// already, and add what it is to hold besides.
func (s *Server) storageFits(view *state.View, v *api.VolumeIntent, others []api.VolumeIntent, has, add int64) error {
	project := view.Project(v.Project)
	if project == nil || add <= 0 {
		return nil
	}
	var used, more resource.Amounts
	used.Vector[resource.Storage] = has + situation.UsedStorage(others, s.found(view))
	more.Vector[resource.Storage] = add
	if err := tenancy.CheckQuota(project.Quota, used, more); err != nil {
		return fail(codeOverQuota, "%s exceeds the quota of project %q: %v", whatExceeds(v), v.Project, err)
	}
	return nil
}

func (s *Server) changeVolume(ctx context.Context, in *volumeBody) (*body[api.VolumeStatus], error) {
	var change api.VolumeChange
	src, err := readPatch(rawBody{in.ContentType, in.RawBody}, &change)
	if err != nil {
		return nil, err
	}
	if err := manifest.CheckVolumeChange(change, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	v, err := s.volumeToChange(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	view := s.cfg.Reader.View()
	found := s.found(view)(v.Intent.UID)
	if err := changesKind(&v.Intent, change); err != nil {
		return nil, err
	}
	return s.writeVolume(ctx, v, func(next *api.VolumeIntent, others []api.VolumeIntent) error {
		was, has := next.SizeBytes, situation.UsedStorage([]api.VolumeIntent{*next}, s.found(view))
		if change.Size != nil {
			if err := tooFull(found, *change.Size); err != nil {
				return err
			}
			if next.Kind != api.VolumeBlock && next.MaxFiles == filesFor(was) { // nobody said otherwise
				next.MaxFiles = filesFor(int64(*change.Size))
			}
			next.SizeBytes = int64(*change.Size)
		}
		if change.Files != nil {
			next.MaxFiles = *change.Files
		}
		if change.Access != nil {
			next.Access = *change.Access
		}
		if change.IOLimit != nil {
			next.IOBytesPerSecond = int64(*change.IOLimit)
		}
		if change.Retention != nil {
			next.Retention = *change.Retention
		}
		return s.storageFits(view, next, others, has, next.SizeBytes-was)
	})
}

// tooFull refuses a size below what a volume holds, as far as that is known.
func tooFull(found *volume.State, size api.Bytes) error {
	if found == nil || found.UsedBytes <= int64(size) {
		return nil
	}
	return fail(codeVolumeTooFull, "the volume holds %s and can't shrink to %s; delete files first, or give more",
		resource.Storage.Number(found.UsedBytes), resource.Storage.Number(int64(size)))
}

// writeVolume changes what is wanted of a volume.
func (s *Server) writeVolume(ctx context.Context, v *state.Volume, change state.VolumeChange) (*body[api.VolumeStatus], error) {
	_, own := tenancy.Split(v.Intent.Name)
	next, revision, err := s.cfg.Writer.ChangeVolume(ctx, v.Intent.Name, v.Intent.UID, change)
	if err != nil {
		return nil, volumeFailure(err, own)
	}
	return &body[api.VolumeStatus]{s.afterVolumeWrite(ctx, next, revision)}, nil
}

func (s *Server) deleteVolume(ctx context.Context, in *volumeDelete) (*body[api.VolumeStatus], error) {
	v, err := s.volumeToChange(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	_, own := tenancy.Split(v.Intent.Name)
	now := s.cfg.Now().UTC()
	next, revision, err := s.cfg.Writer.RequestVolumeDelete(ctx, v.Intent.Name, v.Intent.UID, now, func(v *api.VolumeIntent) time.Time {
		if in.Now {
			return now
		}
		return now.Add(time.Duration(v.Retention))
	})
	if err != nil {
		return nil, volumeFailure(err, own)
	}
	return &body[api.VolumeStatus]{s.afterVolumeWrite(ctx, next, revision)}, nil
}

func (s *Server) undeleteVolume(ctx context.Context, in *volumeInput) (*body[api.VolumeStatus], error) {
	v, err := s.volumeToChange(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	_, own := tenancy.Split(v.Intent.Name)
	next, revision, err := s.cfg.Writer.UndeleteVolume(ctx, v.Intent.Name, v.Intent.UID)
	if err != nil {
		return nil, volumeFailure(err, own)
	}
	return &body[api.VolumeStatus]{s.afterVolumeWrite(ctx, next, revision)}, nil
}
