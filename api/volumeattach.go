package api

// VolumeDetach is a volume that members of a cluster are to let go of.
type VolumeDetach struct {
	UID string `json:"uid"`
	// Number is the intent's VolumesNumber with which this was requested. UID and Number name the request.
	Number int64 `json:"number"`
	// VolumeAttachment is how they have it.
	VolumeAttachment
}

// Same reports whether both are one request.
func (d VolumeDetach) Same(o VolumeDetach) bool { return d.UID == o.UID && d.Number == o.Number }

// The changes of a member's volumes.
const (
	VolumeAttaching = "attaching"
	VolumeDetaching = "detaching"
)

// MemberVolumeChange is a volume that a member is about to have, or to let go of.
type MemberVolumeChange struct {
	// Name is that within the project, Path where the member has the volume.
	Name string `json:"name"`
	Path string `json:"path"`
	// Change is attaching or detaching.
	Change string `json:"change"`
	// Message is what it waits for; "": its node is at work.
	Message string `json:"message,omitempty"`
}
