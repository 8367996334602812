package api

// LayerDir is the directory of members in which layers lie, each under the name of its environment, unless a request says otherwise.
const LayerDir = "/layers"

// MaxLayers bounds the layers of a cluster.
const MaxLayers = 16

// Layer is the own layer of a built environment: what its recipe adds to its base, or all of it where it has none. Members of a cluster have it read-only
// under one path, beside their root.
type Layer struct {
	// Environment is the name of the environment.
	Environment string `json:"environment"`
	// Path is where members have the layer; it defaults to /layers/ENVIRONMENT.
	Path string `json:"path,omitempty"`
	// Digest is the image that the name stood for when the layer was added. The server sets it.
	Digest string `json:"digest,omitempty"`
}

// MountPath returns where members have the layer.
func (l Layer) MountPath() string {
	if l.Path == "" {
		return LayerDir + "/" + l.Environment
	}
	return l.Path
}

// LayerRemoval is a layer that members are to let go of.
type LayerRemoval struct {
	Layer
	// Number is the intent's LayersNumber with which this was requested.
	Number int64 `json:"number"`
}

// The states of a cluster's layer.
const (
	LayerAdding   = "adding"
	LayerReady    = "ready"
	LayerRemoving = "removing"
)

// LayerStatus is a layer of a cluster as its members have it.
type LayerStatus struct {
	Layer
	// State is adding, ready or removing.
	State string `json:"state"`
	// Waiting is how many members do not have the layers of the cluster yet; Message is what the first of them waits for.
	Waiting int    `json:"waiting,omitempty"`
	Message string `json:"message,omitempty"`
}
