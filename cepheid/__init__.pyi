from cepheid import datasets as datasets
from cepheid import logs as logs
from cepheid import models as models
from cepheid.logs import read_log as read_log
from cepheid.logs import results as results
