package apiserver

import "net/http"

// The codes of layers.
var (
	codeCantAddLayer = Code{
		"cant_add_layer", http.StatusConflict, "The cluster can't have the layer",
		"Only members on the stacks container and metal have layers, and only environments that were built have one; or something else is at the path. `detail` has the reason.",
		"Choose another environment or path, or wait until the former layer is removed.",
	}
	codeNoLayer = Code{
		"layer_not_found", http.StatusNotFound, "The cluster does not have the layer",
		"The cluster has no layer of this environment.", "List the cluster's layers and correct the name: nearmetal cluster layer list NAME.",
	}
)
