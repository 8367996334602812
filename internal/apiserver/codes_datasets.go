package apiserver

import "net/http"

// The codes of datasets.
var (
	codeNoDataset = Code{
		"dataset_not_found", http.StatusNotFound, "The dataset does not exist",
		"No dataset that the token may see has this name or UID: it was deleted, or belongs to another project.", "List the datasets and correct the name.",
	}
	codeUnknownDataset = Code{
		"unknown_dataset", http.StatusUnprocessableEntity, "The project has no such dataset",
		"A cluster asks for a dataset that its project does not have; `detail` lists those of the project.",
		"Choose a listed dataset, or add it: nearmetal dataset add NAME.",
	}
	codeUnfitDataset = Code{
		"unfit_dataset", http.StatusUnprocessableEntity, "The dataset can't be read in this way",
		"A cluster asks for a dataset as stream or cached, and its sources do not allow that; `detail` gives the reason.",
		"Ask for a copy: omit the way after the dataset's name. Or make another dataset whose sources allow it.",
	}
	codeDatasetExists = Code{
		"dataset_exists", http.StatusConflict, "The dataset's name is taken", "The project has a dataset of this name.", "Choose another name, or delete the dataset first.",
	}
	codeDatasetInUse = Code{
		"dataset_in_use", http.StatusConflict, "The dataset is in use", "Clusters ask for it; `detail` names them.", "Delete the clusters first.",
	}
	codeReplicaInUse = Code{
		"replica_in_use", http.StatusConflict, "A replica is in use", "Members on a node have the dataset, so its replica there can't be removed; `detail` names the nodes.",
		"Delete the clusters of these members first, or name other nodes.",
	}
	codeTooManyDatasets = Code{
		"too_many_datasets", http.StatusConflict, "The project has too many datasets",
		"The project has as many datasets as a project may have; `detail` names the limit.", "Delete a dataset first.",
	}
)
