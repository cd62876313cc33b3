"""Pre- and postprocessing around a policy, as its folder describes them."""

from sparkrt_ros.runtime.processors.pipeline import Postprocessor, Preprocessor, make_processors
from sparkrt_ros.runtime.processors.scaling import FeatureScaler

__all__ = ['FeatureScaler', 'Postprocessor', 'Preprocessor', 'make_processors']
